/* A port of the loopback device that was free a moment ago, for tests that run beside others. */
#ifndef TEST_FREE_PORT_H
#define TEST_FREE_PORT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

static inline uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(s, (struct sockaddr *)&address, bytes) != 0 || getsockname(s, (struct sockaddr *)&address, &bytes) != 0)
        address.sin_port = 0;
    close(s);
    return ntohs(address.sin_port);
}

#endif
