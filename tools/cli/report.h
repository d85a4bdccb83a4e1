/* `jem report RUN|MODEL`: a model card, one self-contained HTML file that can be mailed. Each
   section is a command of this program: its printed and drawn output is captured and put into the
   page, with the command itself, so the page equals the terminal. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

/* ---- the command ----------------------------------------------------------------------------- */

int report_command(int argc, char **argv);

#endif
