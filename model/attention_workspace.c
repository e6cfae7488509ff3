#include "attention_workspace.h"

bool dtp_attention_is_fused(bool bf16, uint32_t sequence, uint32_t head_dim)
{
    return bf16 && sequence % 128 == 0 && head_dim % 8 == 0 && head_dim <= 128;
}
