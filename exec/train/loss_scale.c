#include "train/loss_scale.h"

#define FIRST_SCALE 65536.0
#define LARGEST_SCALE 0x1p127 /* a float holds it */
#define LEAST_SCALE 0x1p-14   /* as far as fp16's normal numbers reach: whatever overflows below is no number at all */
#define GOOD_STEPS 2000u

enum dtp_status dtp_loss_scale_start(const struct dtp_settings *settings, bool fp16,
                                     struct dtp_checkpoint_position *position, struct dtp_faults *faults)
{
    if (settings->loss_scale && !fp16)
        return dtp_fault(
            faults, DTP_BAD_INPUT, NULL, 0,
            "--loss-scale is of fp16, whose gradients would vanish without; this run's are wider, leave it "
            "out or take --precision fp16-mixed");
    if (!fp16)
        *position = (struct dtp_checkpoint_position){position->step, position->samples, position->skipped, 0, 0};
    else if (settings->fixed_loss_scale > 0)
        position->loss_scale = settings->fixed_loss_scale;
    else if (!(position->loss_scale > 0))
        position->loss_scale = FIRST_SCALE;
    return DTP_OK;
}

bool dtp_loss_scale_step(const struct dtp_settings *settings, bool skipped, struct dtp_checkpoint_position *position)
{
    if (!(position->loss_scale > 0) || settings->fixed_loss_scale > 0)
        return false;
    position->good_steps = skipped ? 0 : position->good_steps + 1;
    if (skipped && position->loss_scale > LEAST_SCALE) {
        position->loss_scale /= 2;
        return true;
    }
    if (position->good_steps == GOOD_STEPS) {
        position->good_steps = 0;
        position->loss_scale *= position->loss_scale < LARGEST_SCALE ? 2 : 1;
    }
    return false;
}
