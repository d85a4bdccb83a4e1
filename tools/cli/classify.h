/* `jem classify`: the class, log p(x) and familiarity of pictures. */
#ifndef CLI_CLASSIFY_H
#define CLI_CLASSIFY_H

int classify_command(int argc, char **argv);

#endif
