/* AMX with the tiles of the processor, if it has them: one tile compared with Intel's manual, bit
   for bit; the same bits for any number of threads, with and without the plan; every convolution
   and a network compared with plain C. It includes test_kernels.c, which implements tiles in plain
   C. */
#define OWN_TILES
#include "test_kernels.c"

/* One step of the tiles, from random numbers and sums: the processor's against that of plain C. */
static void test_tile(void) {
#ifdef JEM__AMX
    static uint16_t a[512], b[512];
    static float c[256], plain[256];
    jem_rng rng = jem_rng_seed(8);
    int off = 0;
    jem__bf16_block one;
    memset(&one, 0, sizeof one);
    one.m = one.n = one.add = one.runs = 1;
    one.pairs = 16;
    one.a[0] = a;
    one.b[0][0] = b;
    one.c = c;
    printf("a tile of sums\n");
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 512; i++) {
            a[i] = jem__to_bf16(jem_rng_normal(&rng));
            b[i] = jem__to_bf16(jem_rng_normal(&rng));
        }
        for (int i = 0; i < 256; i++) plain[i] = c[i] = jem_rng_normal(&rng);
        memcpy(plain_tile[0], plain, sizeof plain);
        memcpy(plain_tile[4], a, sizeof a);
        memcpy(plain_tile[6], b, sizeof b);
        tile_dot(0, 4, 6);
        jem__tile_begin();
        jem__bf16_block_amx(&one, NULL);
        jem__tile_end();
        off += memcmp(plain_tile[0], c, sizeof c) != 0;
    }
    CHECK(off == 0, "%d of 50 tiles have other bits", off);
#endif
}

/* Checks that jem.h uses AMX tiles by default if Linux reports and grants them. Otherwise the tests
   below would be skipped without notice. */
#if defined(JEM__AMX) && defined(__linux__)
extern long syscall(long number, ...);             /* -std=c99 hides it */
static int linux_lends_tiles(void) {
    char line[8192];
    int tiles = 0;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f) && strncmp(line, "flags", 5)) {}
    if (f) {
        tiles = strstr(line, " amx_bf16") && strstr(line, " amx_tile");
        fclose(f);
    }
    return tiles && syscall(158, 0x1023L, 18L) == 0;         /* as jem__x86_has asks */
}
#else
static int linux_lends_tiles(void) { return 0; }
#endif
static void test_choice(void) {
    const setup best = setup_of(JEM_ISA_BEST, 1, 0);
    if (!linux_lends_tiles()) return;
    CHECK(jem_isa_available(JEM_ISA_AMX), "the processor has tiles, Linux lends them");
    jem_ctx *ctx = jem_ctx_create(&best.desc);
    CHECK(jem_ctx_precision(ctx) == JEM_PRECISION_BF16 && jem_ctx_isa(ctx) == JEM_ISA_AMX,
          "it chose %s, %s",
          jem_isa_name(jem_ctx_isa(ctx)), precision_name[jem_ctx_precision(ctx)]);
    jem_ctx_free(ctx);
}

static int every_amx(setup *s) {
    int n = 0;
    for (int threads = 1; threads <= 3; threads++) s[n++] = setup_of(JEM_ISA_AMX, threads, 0);
    s[n++] = plain_tape(setup_of(JEM_ISA_AMX, 1, 0));
    return n;
}

static int test_own_tiles(void) {
    precision = JEM_PRECISION_BF16;
    if (test_wants("test_choice")) test_choice();
    if (!jem_isa_available(JEM_ISA_AMX)) {
        jem_ctx_desc want;
        memset(&want, 0, sizeof want);
        want.isa = JEM_ISA_AMX;
        printf("this processor has no AMX: nothing else is tested\n");
        CHECK(jem_ctx_create(&want) == NULL, "a context with AMX where there is none");
    } else {
        if (test_wants("test_tile")) test_tile();
        compare("convolutions", convolutions, every_amx);
        compare("networks and training", networks, every_amx);
        if (test_wants("test_tiles")) test_tiles();
    }
    return test_report();
}
