/* A network as an ONNX graph, for `jem export --onnx`. */
#ifndef CLI_ONNX_H
#define CLI_ONNX_H

#include "jem.h"

enum { ONNX_MESSAGE_SIZE = 640 };

/* Writes a file for opset 13: input x (n,c,h,w) in the data's units, outputs logits (n,classes),
   logp (n), which is log p(x) + log Z, and, with slope = 1, slope (n,c,h,w) = d logp / dx. Returns
   1; or 0 and the reason in `message`, with the path if it is the file's: a network or an op that
   is not supported, or a file that cannot be written. */
int onnx_export(const jem_net *net, const char *path, int slope, char message[ONNX_MESSAGE_SIZE]);

#endif
