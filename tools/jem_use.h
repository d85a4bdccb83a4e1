#ifndef TOOLS_JEM_USE_H
#define TOOLS_JEM_USE_H
static int sample_command(int argc, char **argv) { (void)argc, (void)argv; return 2; }
static int classify_command(int argc, char **argv) { (void)argc, (void)argv; return 2; }
static int eval_command(int argc, char **argv) { (void)argc, (void)argv; return 2; }
static int info_command(int argc, char **argv) { (void)argc, (void)argv; return 2; }
static int export_command(int argc, char **argv) { (void)argc, (void)argv; return 2; }
#endif
