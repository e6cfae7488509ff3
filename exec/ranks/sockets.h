/* Whole messages over connected sockets, for what ranks tell and send each other. */
#ifndef DTP_SOCKETS_H
#define DTP_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>

/* How long a call may take that sends, receives or connects; also turns off Nagle's delay. */
void dtp_socket_set_timeout(int socket, double seconds);
/* False: the other end is gone, or silent for longer than the timeout. */
bool dtp_socket_send(int socket, const void *data, size_t bytes);
bool dtp_socket_receive(int socket, void *data, size_t bytes);

#endif
