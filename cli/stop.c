#include "cli/stop.h"

#include <signal.h>

static volatile sig_atomic_t asked;

static void stop(int number)
{
    (void)number;
    asked = 1;
}

void dtp_stop_listen(bool once)
{
    const struct sigaction on = {.sa_handler = stop, .sa_flags = once ? (int)SA_RESETHAND : 0};
    asked = 0;
    sigaction(SIGINT, &on, NULL);
    sigaction(SIGTERM, &on, NULL);
}

bool dtp_stop_asked(void)
{
    return asked != 0;
}
