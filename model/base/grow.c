#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ITEMS 64

bool dtp_grow(void *items, size_t count, size_t *room, size_t item_bytes)
{
    size_t wider = 2 * *room + FIRST_ITEMS;
    void *list;
    if (count < *room)
        return true;
    memcpy(&list, items, sizeof list); /* pointers to whatever type have one form */
    list = realloc(list, wider * item_bytes);
    if (!list)
        return false;
    memcpy(items, &list, sizeof list);
    *room = wider;
    return true;
}
