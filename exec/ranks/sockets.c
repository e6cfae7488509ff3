#include "ranks/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

void dtp_socket_set_timeout(int socket, double seconds)
{
    struct timeval t = {.tv_sec = (time_t)seconds, .tv_usec = (suseconds_t)(1e6 * (seconds - (double)(time_t)seconds))};
    int one = 1;
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

bool dtp_socket_send(int socket, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

bool dtp_socket_receive(int socket, void *data, size_t bytes)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(socket, at, bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}
