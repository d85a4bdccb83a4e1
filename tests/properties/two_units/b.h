#ifndef TWO_UNITS_B_H
#define TWO_UNITS_B_H
#ifdef __cplusplus
extern "C"
#endif
int other_unit(jem_ctx *ctx);
#endif
