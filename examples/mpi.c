/* Several machines train one model: all of build/jem, with MPI to sum their gradients.
       make mpi
       mpirun -n 4 build/jem-mpi train --dataset digits --out runs/a
       mpirun -n 2 build/jem-mpi train --resume runs/a        resumes with another number, or with 1
   Options are those of `jem train`; the batch and --negatives are totals over all processes, so
   each must be a multiple of their number, ideally of 16 times that. Losses equal those of a single
   process, up to rounding. Each process draws every batch, and computes its part: so all machines
   need the data and, with --resume, the checkpoint, under the same path. Only process 0 writes
   files and prints. tools/README.md gives the number of machines that pays off. */
#define main jem_main
#include "tools/cli/jem.c"
#undef main

#include <unistd.h>

#include <mpi.h>

#include "tools/cli/train.h"

typedef struct cost { double floats, seconds; } cost;

/* Sums data over all processes, which all receive the same bits. */
static void sum_over_ranks(void *user, float *x, ptrdiff_t n) {
    enum { AT_ONCE = 1 << 28 };                    /* MPI counts in int */
    cost *c = (cost *)user;
    const double start = MPI_Wtime();
    c->floats += (double)n;
    for (; n > 0; x += AT_ONCE, n -= AT_ONCE)      /* an error ends all processes */
        MPI_Allreduce(MPI_IN_PLACE, x, n < AT_ONCE ? (int)n : AT_ONCE, MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
    c->seconds += MPI_Wtime() - start;
}

/* Redirects the output of all processes but 0 into a file, in case they fail alone. Returns that
   file, or NULL. */
static FILE *be_quiet(void) {
    FILE *f = tmpfile();
    if (f && freopen("/dev/null", "w", stdout) && dup2(fileno(f), 2) >= 0) return f;
    return NULL;
}

static void speak_up(FILE *quiet, int console) {
    char line[600];
    if (!quiet || dup2(console, 2) < 0) return;
    rewind(quiet);
    while (fgets(line, sizeof line, quiet)) fprintf(stderr, "process %d: %s", team.rank, line);
}

int main(int argc, char **argv) {
    int threads;                                   /* only this thread calls MPI */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads);
#ifdef _OPENMP
    if (threads < MPI_THREAD_FUNNELED) {
        fprintf(stderr, "this MPI does not allow threads: compile without -fopenmp\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &team.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &team.ranks);
    cost sums = { 0, 0 };
    team.sum = sum_over_ranks;
    team.user = &sums;

    const int console = dup(2);
    const int trains = argc > 1 && !strcmp(argv[1], "train");
    FILE *quiet = NULL;
    if (team.rank) quiet = be_quiet();
    const int status = team.rank == 0 || trains ? jem_main(argc, argv) : 0;
    if (status == 0 || status > 128) {             /* done; or asked to stop, as all were */
        if (sums.floats > 0)
            printf("summed %.1f MB, and waited for the slowest, in %.1f seconds\n",
                   4e-6 * sums.floats, sums.seconds);
        MPI_Finalize();
        return status;
    }
    /* The others may wait for a sum that will not come. If process 0 failed too, for the same
       reason, it prints that and meanwhile ends this one. */
    if (team.rank) sleep(1);
    speak_up(quiet, console);
    MPI_Abort(MPI_COMM_WORLD, status);
    return status;
}
