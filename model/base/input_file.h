/* Input by name, or by "-", which is standard input. */
#ifndef DTP_INPUT_FILE_H
#define DTP_INPUT_FILE_H

#include "base/status.h"

#include <stddef.h>

/* What faults call it. */
const char *dtp_input_name(const char *path);
/* The whole file with a 0 behind it, the caller's to free; of one that is larger than `most` at least a byte more, so
 * that *bytes tells it. `folder`: what is said behind "is a folder" of one. */
enum dtp_status dtp_input_read(const char *path, size_t most, const char *folder, char **out, size_t *bytes,
                               struct dtp_faults *faults);

#endif
