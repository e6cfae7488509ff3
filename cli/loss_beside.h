/* The loss of a run beside that of another, of which a log (--log) is left: with compressed gradients and without, say.
 *
 * A log says neither model nor data nor seed. What it does say must be this run's: the loss of the first step, which no
 * hook has changed yet and another model, data, seed or batch would have; tokens of a step; the learning rate of the
 * last, which the number of steps decides too. */
#ifndef DTP_LOSS_BESIDE_H
#define DTP_LOSS_BESIDE_H

#include "record/run_report.h"

/* That there is a log: before a run is begun for it. NULL: none is asked for. */
enum dtp_status dtp_loss_beside_check(const char *path, struct dtp_faults *faults);
/* Its losses of the steps whose mean report->measured->last_loss is, into report->beside. DTP_BAD_INPUT: it is of
 * another run, in what; or has no such steps. */
enum dtp_status dtp_loss_beside_read(const char *path, struct dtp_run_report *report, struct dtp_faults *faults);

#endif
