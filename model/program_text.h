/* The step program as text, both ways: for golden files, bug reports and `dtplan explain --program`.
 *
 *   program 1
 *   group 0 ranks 8 stride 1
 *   buffer 3 qkv bytes 100663296 owner activations space device pool compute layer 0 micro 0
 *   buffer 0 params bytes 3500000000 owner params space device pool compute persistent
 *   op 17 matmul compute layer 0 micro 0 reads 2 5 writes 3 allocs 3 frees 2 after 14 m 8192 n 6144 k 2048 flops 206158430208 dtype bf16 name "qkv"
 *
 * Numbers print so that reading gives the same bits. Any corruption is refused with its line and a reason. */
#ifndef DTP_PROGRAM_TEXT_H
#define DTP_PROGRAM_TEXT_H

#include "program.h"

#include <stdio.h>

enum dtp_status dtp_program_write_text(const struct dtp_program *program, FILE *file);
/* Caller destroys *out (sealed). `name` stands for the source in messages. */
enum dtp_status dtp_program_parse_text(const char *name, const char *text, size_t bytes, struct dtp_program **out,
                                       struct dtp_faults *faults);

#endif
