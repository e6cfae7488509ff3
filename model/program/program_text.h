/* The step program as text, both ways: for golden files, bug reports, and who writes one (dtplan(1), STEP PROGRAMS).
 *
 *   program 1
 *   execution issuer native allocator arena compute bf16 reduce fp32 own_kernels
 *   group 0 ranks 8 stride 1
 *   buffer 0 "params" bytes 3500000000 owner params space device pool compute dtype bf16 content weights
 *          module 1 persistent
 *   buffer 3 "qkv" bytes 100663296 owner activations space device pool compute layer 0 dtype bf16
 *   op 17 matmul compute layer 0 micro 1 reads 2-:input 0@4096:weight writes +3:result after 14
 *          flops 206158430208 m 8192 n 6144 k 2048 kernels 1 dtype bf16 name "qkv"
 *   end ops 18 buffers 4 groups 1
 *
 * What is indented further above belongs to the line before it: a page is narrower than a line of the text.
 *
 * One thing a line, numbered in order; operations refer to what stands before them. Operands stand in their order
 * behind `reads`, `writes`, `updates` or, where no byte is touched, `buffers`: +3 is allocated, 2- freed and 2~ freed
 * with DTP_DEFER by the operation; 0@4096 begins at byte 4096 of buffer 0, 0@4096+512 touches 512 bytes from there on
 * and no others, 0% is this rank's shard of it; the operand's role stands behind a colon. A send or receive says the
 * peer's role and a tag (program_set.h). Attention says its heads, kv_heads, head_dim, value_dim, window, queries,
 * keys, whether it is causal, and its kernel, a grouped matmul its groups. What is 0 or none is left out. Numbers are
 * whole, or MpE for M * 2^E, so that reading gives the same bits in every locale. Blank lines and lines that begin with
 * '#' are skipped. */
#ifndef DTP_PROGRAM_TEXT_H
#define DTP_PROGRAM_TEXT_H

#include "program/program.h"

#include <inttypes.h>
#include <stdio.h>

/* DTP_ENVIRONMENT: the file could not be written. */
enum dtp_status dtp_program_write_text(const struct dtp_program *program, FILE *file);
/* Caller destroys *out (sealed); NULL on failure. `name` stands for the source in messages. Any corruption, a missing
 * end included, is DTP_BAD_INPUT with line and reason, all faults at once. Linear time; memory is a small multiple of
 * the text's. Says nothing about races and lifetimes: dtp_program_verify does. */
enum dtp_status dtp_program_parse_text(const char *name, const char *text, size_t bytes, struct dtp_program **out,
                                       struct dtp_faults *faults);

/* Of lines within a longer text, `before` lines stand before them. */
struct dtp_text_lines {
    const char *name, *text;
    size_t bytes, before;
};
enum dtp_status dtp_program_parse_lines(const struct dtp_text_lines *lines, struct dtp_program **out,
                                        struct dtp_faults *faults);

/* The text as a file, both ways. DTP_ENVIRONMENT: the file cannot be written or read; of a bad text as above. */
enum dtp_status dtp_program_write_file(const struct dtp_program *program, const char *path, struct dtp_faults *faults);
enum dtp_status dtp_program_read_file(const char *path, struct dtp_program **out, struct dtp_faults *faults);

/* A whole file, for who parses texts of several kinds: caller frees *text. DTP_ENVIRONMENT as above. */
enum dtp_status dtp_program_read_bytes(const char *path, char **text, size_t *bytes, struct dtp_faults *faults);

/* CRC-64 of the text: programs of one digest are one program. Logs and rows of runs spell it with
 * DTP_PROGRAM_DIGEST_FORMAT. DTP_ENVIRONMENT: no memory. */
#define DTP_PROGRAM_DIGEST_FORMAT "%016" PRIx64
#define DTP_PROGRAM_DIGEST_BYTES 17
enum dtp_status dtp_program_digest(const struct dtp_program *program, uint64_t *out, struct dtp_faults *faults);

#endif
