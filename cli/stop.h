/* SIGINT and SIGTERM as a wish that long work asks for between two of its parts, so that it ends with whole rows and a
 * word on how far it came. */
#ifndef DTP_STOP_H
#define DTP_STOP_H

#include <stdbool.h>

/* From now on; `once`: a second signal ends the process at once, for a part may take seconds. */
void dtp_stop_listen(bool once);
bool dtp_stop_asked(void);

#endif
