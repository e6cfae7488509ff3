/* What ranks send each other of snapshots, beside the control connections and what carries collectives: each serves the
 * files of its memory to those who ask, and takes in the copies of its neighbour's.
 *
 * A connection is made for one request and closed after it: what a rank that died or was cut off leaves is a short
 * read at the other end, never something to wait for longer than the timeouts. Requests are served one after the other,
 * by a thread that waits for nobody else. Strangers do not know the run's secret, which ranks tell each other over
 * their control connections, and are hung up on. */
#ifndef DTP_SNAPSHOT_PEERS_H
#define DTP_SNAPSHOT_PEERS_H

#include "snapshot/store.h"

/* Where a rank serves: an IPv4 address and a port, both as they go over the network. */
struct dtp_peer {
    uint32_t address;
    uint32_t port;
};

struct dtp_peer_server;

/* Serves `folder` at `address` (as text) on a port that is free, from a thread of its own, which first waits for the
 * secret. Caller stops it. DTP_ENVIRONMENT: no port there. */
enum dtp_status dtp_peer_serve(const char *address, const char *folder, struct dtp_peer_server **out,
                               struct dtp_faults *faults);
struct dtp_peer dtp_peer_own(const struct dtp_peer_server *server);
/* Tells it the secret and the run that it serves; from now on it answers. */
void dtp_peer_trust(struct dtp_peer_server *server, uint64_t secret, uint64_t identity);
void dtp_peer_stop(struct dtp_peer_server *server);

/* A snapshot as it is sent. The peer does not write over a copy of step `keep_step` by `keep_world` ranks. */
struct dtp_peer_copy {
    const struct dtp_snapshot_head *head; /* sealed */
    const struct dtp_snapshot_block *blocks;
    const void *data;
    uint64_t keep_step;
    uint32_t keep_world;
};
/* Puts it into the peer's folder. DTP_ENVIRONMENT: the peer is gone, cut off, or its memory is full. */
enum dtp_status dtp_peer_put(const struct dtp_peer *peer, uint64_t secret, const struct dtp_peer_copy *copy,
                             struct dtp_faults *faults);
/* Bytes [offset, offset + bytes) of a file of the peer's folder, into `out`. DTP_ENVIRONMENT: the peer is gone, cut
 * off, or does not have them. */
enum dtp_status dtp_peer_get(const struct dtp_peer *peer, uint64_t secret, const struct dtp_snapshot_name *name,
                             uint64_t offset, void *out, uint64_t bytes, struct dtp_faults *faults);

#endif
