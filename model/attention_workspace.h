/* What attention needs beside its operands: one rule, for the program that declares the buffer and the executor that
 * checks what cuDNN asks against it. */
#ifndef DTP_ATTENTION_WORKSPACE_H
#define DTP_ATTENTION_WORKSPACE_H

#include <stdbool.h>
#include <stdint.h>

/* Parts of a workspace begin at multiples of this. */
#define DTP_WORKSPACE_ALIGNMENT 256u

/* Whether cuDNN's flash attention computes a shape: bf16, heads of up to 128 elements in whole 16 bytes, and sequences of
 * whole blocks of 128 (engines before 9.16 read beyond the last one). Our own slow attention takes the others. */
bool dtp_attention_is_fused(bool bf16, uint32_t sequence, uint32_t head_dim);

/* Bytes of workspace of a fused shape. Forward: none of ours. Backward: row sums of dO O, [batch, heads, sequence], and the
 * fp32 sum of dQ, [batch, heads, sequence, head_dim], which becomes bf16 at the end; and what the engine takes. */
uint64_t dtp_attention_workspace_bytes(uint32_t batch, uint32_t sequence, uint32_t heads, uint32_t kv_heads,
                                       uint32_t head_dim, bool backward, bool deterministic);

#endif
