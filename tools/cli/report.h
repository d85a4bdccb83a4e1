/* `jem report RUN|MODEL`: a model card, one HTML file that needs nothing besides and can be mailed.
   Each section is a command of this program: what it prints and draws is caught and put into the
   page, with the command itself, so the page says what the terminal would. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

/* ---- the command ----------------------------------------------------------------------------- */

int report_command(int argc, char **argv);

#endif
