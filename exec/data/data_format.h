/* Files that hold tokens or text in a container of their own: to train on their bytes would be to train on headers,
 * indices and compressed noise. They are told by their first bytes, whatever they are called. */
#ifndef DTP_DATA_FORMAT_H
#define DTP_DATA_FORMAT_H

#include <stddef.h>

struct dtp_data_format {
    const char *name;   /* "a NumPy array" */
    const char *advice; /* what makes a file of tokens or text of it */
};

/* NULL: none that is known, or raw. `bytes` is the size of the whole file, of which the first min(bytes, 16) are looked
 * at. */
const struct dtp_data_format *dtp_data_format_of(const void *data, size_t bytes);

#endif
