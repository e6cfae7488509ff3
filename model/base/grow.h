/* Lists that grow as items come: twice the room and some more each time, so that adding stays cheap. */
#ifndef DTP_GROW_H
#define DTP_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* Room for one more than `count` items of a list: `items` is the address of the pointer to them, which may change, and
 * *room then says how many there is room for. False: no memory, and all is as it was. */
bool dtp_grow(void *items, size_t count, size_t *room, size_t item_bytes);

#endif
