/* The runtimes torch and peft, of plan/runtime.h, and what its files fill it with. */
#ifndef DTP_TORCH_RUNTIME_H
#define DTP_TORCH_RUNTIME_H

#include "base/words.h"

/* dtp_runtime_peft (peft.c) is PyTorch as Transformers' Trainer, TRL and peft run it: other layers on the same DDP and
 * FSDP. */
extern const struct dtp_runtime dtp_runtime_torch, dtp_runtime_peft;

extern const struct dtp_closed_form_hooks dtp_torch_closed_form; /* closed_form_torch.c */

struct dtp_lowering;

/* lower_host_calls.c: calls of the host around the compiled block whose pass begins here, if there is one. */
void dtp_torch_call_compiled(struct dtp_lowering *l);
void dtp_torch_await_loss(struct dtp_lowering *l);

/* lower_sharding.c, lower_replicated.c */
extern const struct dtp_lower_hooks dtp_lower_fsdp, dtp_lower_ddp;

#endif
