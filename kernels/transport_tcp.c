/* Carries parcels by TCP, where no MPI launcher has started the ranks but the environment names them: MASTER_ADDR,
 * MASTER_PORT, RANK and WORLD_SIZE, as torchrun and many clusters set them, or srun's numbers beside the first two.
 *
 * Rank 0 listens there. Every other rank tells it where it listens itself, gets the list of all, and connects to those
 * between; so each two ranks have one connection, and who has died is known as soon as the kernel has closed it. */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "io/clock.h"
#include "io/stop.h"
#include "kernels/transport.h"

enum {
    HELLO_S = 5,   /* for one who has connected to say who it is */
    RETRY_MS = 50, /* while rank 0 does not listen yet, and between looks at whether to stop */
    GOODBYE_S = 30,
    GOODBYE_TAG = -1,
    FAREWELL_TAG = -2, /* a header alone, whose bytes are an exit code */
    FAREWELL_S = 1,
    HOST_BYTES = 64,
};

static const uint64_t magic = UINT64_C(0x6f666674726e6b01); /* with the version of what follows */

typedef struct hello {
    uint64_t magic;
    uint32_t size, rank, port, unused;
} hello;

typedef struct address {
    char host[HOST_BYTES];
    uint32_t port;
} address;

typedef struct header {
    int64_t tag;
    uint64_t bytes;
} header;

/* How far the parcel at hand has come, its header included. */
typedef struct way {
    header header;
    size_t moved;
} way;

typedef struct connection {
    int fd;
    way in, out;
    int left; /* the code of a farewell */
} connection;

typedef struct tcp_transport {
    ot_transport base;
    connection links[OT_RANKS_MAX];
    int tag;
    ot_parcel *parcels;
    size_t count;
} tcp_transport;

/* ---- parcels ---- */

static int lost(tcp_transport *t, int peer, const char *reason)
{
    snprintf(t->base.error, sizeof t->base.error, "rank %d has died or left: %s", peer, reason);
    return -1;
}

/* What a call on a connection has come to: bytes, 0 for none yet, -1. */
static ssize_t judge(tcp_transport *t, int peer, ssize_t moved)
{
    if (moved >= 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return moved > 0 ? moved : 0;
    return lost(t, peer, strerror(errno));
}

static ssize_t push(tcp_transport *t, const ot_parcel *parcel, way *w)
{
    char *head = (char *)&w->header, *data = parcel->data;
    size_t in_head = w->moved < sizeof w->header ? sizeof w->header - w->moved : 0,
           at = w->moved + in_head - sizeof w->header;
    struct iovec pieces[2] = {{head + w->moved, in_head}, {data + at, parcel->bytes - at}};
    const struct msghdr message = {.msg_iov = in_head > 0 ? pieces : pieces + 1,
                                   .msg_iovlen = in_head > 0 ? 2 : 1};
    return judge(t, parcel->peer, sendmsg(t->links[parcel->peer].fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static int check_header(tcp_transport *t, const ot_parcel *parcel, const way *w)
{
    if (w->header.tag == t->tag && w->header.bytes == parcel->bytes)
        return 0;
    if (w->header.tag == FAREWELL_TAG) {
        t->links[parcel->peer].left = (int)w->header.bytes;
        return lost(t, parcel->peer, "it has failed, and says why");
    }
    snprintf(
        t->base.error, sizeof t->base.error,
        "rank %d has sent %llu bytes of operation %lld, expected %zu of %d: the ranks do not do the same; "
        "give all one command and one offtrain",
        parcel->peer, (unsigned long long)w->header.bytes, (long long)w->header.tag, parcel->bytes, t->tag);
    return -1;
}

/* Nothing behind the parcel is taken. */
static ssize_t pull(tcp_transport *t, const ot_parcel *parcel, way *w)
{
    int in_head = w->moved < sizeof w->header;
    char *to = in_head ? (char *)&w->header + w->moved : (char *)parcel->data + (w->moved - sizeof w->header);
    size_t wanted = in_head ? sizeof w->header - w->moved : parcel->bytes - (w->moved - sizeof w->header);
    ssize_t moved = recv(t->links[parcel->peer].fd, to, wanted, MSG_DONTWAIT);
    return moved == 0 ? lost(t, parcel->peer, "its connection is closed") : judge(t, parcel->peer, moved);
}

/* 1: the parcel has ended; 0; -1. */
static int progress(tcp_transport *t, const ot_parcel *parcel)
{
    connection *l = &t->links[parcel->peer];
    way *w = parcel->incoming ? &l->in : &l->out;
    const size_t all = sizeof w->header + parcel->bytes;
    if (!parcel->incoming && w->moved == 0)
        w->header = (header){t->tag, parcel->bytes};
    while (w->moved < all) {
        ssize_t moved = parcel->incoming ? pull(t, parcel, w) : push(t, parcel, w);
        if (moved <= 0)
            return (int)moved;
        int headed = w->moved >= sizeof w->header;
        w->moved += (size_t)moved;
        if (parcel->incoming && !headed && w->moved >= sizeof w->header && check_header(t, parcel, w) != 0)
            return -1;
    }
    w->moved = 0;
    return 1;
}

static int tcp_start(ot_transport *base, int tag, ot_parcel *parcels, size_t count)
{
    tcp_transport *t = (tcp_transport *)base;
    t->tag = tag;
    t->parcels = parcels;
    t->count = count;
    return 0;
}

/* Of several parcels one way the first goes on alone. */
static int tcp_test(ot_transport *base)
{
    tcp_transport *t = (tcp_transport *)base;
    unsigned char busy[OT_RANKS_MAX][2] = {{0}};
    int all = 1;
    for (size_t p = 0; p < t->count; p++) {
        ot_parcel *parcel = &t->parcels[p];
        unsigned char *before = &busy[parcel->peer][parcel->incoming != 0];
        if (!parcel->ended && !*before) {
            int ended = progress(t, parcel);
            if (ended < 0)
                return -1;
            parcel->ended = ended;
        }
        *before |= !parcel->ended;
        all &= parcel->ended;
    }
    return all;
}

static void free_transport(tcp_transport *t)
{
    for (int peer = 0; peer < t->base.size; peer++)
        if (t->links[peer].fd >= 0)
            close(t->links[peer].fd);
    free(t);
}

/* With a parcel from everybody nobody is left waiting. */
static void tcp_close(ot_transport *base)
{
    tcp_transport *t = (tcp_transport *)base;
    char out = 0, in[OT_RANKS_MAX];
    ot_parcel parcels[OT_PARCELS_MAX];
    size_t count = 0;
    for (int peer = 0; peer < base->size; peer++)
        if (peer != base->rank) {
            parcels[count++] = (ot_parcel){peer, 0, 0, &out, 1};
            parcels[count++] = (ot_parcel){peer, 1, 0, &in[peer], 1};
        }
    tcp_start(base, GOODBYE_TAG, parcels, count);
    int64_t deadline = ot_clock_ns() + GOODBYE_S * INT64_C(1000000000);
    while (tcp_test(base) == 0 && ot_clock_ns() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    free_transport(t);
}

/* A connection that is closed before all that came on it has been taken loses what was sent, too; the others close theirs when
 * they have got the word. One with half a parcel under way has no place for it. */
static void tcp_leave(ot_transport *base, int code)
{
    tcp_transport *t = (tcp_transport *)base;
    const header word = {FAREWELL_TAG, (uint64_t)code};
    char ignored[4096];
    int64_t deadline = ot_clock_ns() + FAREWELL_S * INT64_C(1000000000);
    for (int peer = 0; peer < base->size; peer++) {
        const connection *l = &t->links[peer];
        if (l->fd < 0)
            continue;
        if (l->out.moved == 0)
            (void)send(l->fd, &word, sizeof word, MSG_NOSIGNAL | MSG_DONTWAIT);
        shutdown(l->fd, SHUT_WR);
    }
    for (int peer = 0; peer < base->size; peer++)
        for (int fd = t->links[peer].fd; fd >= 0 && ot_clock_ns() < deadline;) {
            ssize_t moved = recv(fd, ignored, sizeof ignored, MSG_DONTWAIT);
            if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR))
                break;
            if (moved < 0)
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
}

/* Of a peer that nothing is expected of the word still lies in the connection. */
static int tcp_left(ot_transport *base, int peer)
{
    connection *l = &((tcp_transport *)base)->links[peer];
    header word = {0, 0};
    if (l->left == 0 && l->in.moved == 0 &&
        recv(l->fd, &word, sizeof word, MSG_PEEK | MSG_DONTWAIT) == sizeof word && word.tag == FAREWELL_TAG)
        l->left = (int)word.bytes;
    return l->left;
}

/* ---- connections ---- */

static int64_t deadline_in(double seconds)
{
    return ot_clock_ns() + (int64_t)(seconds * 1e9);
}

/* ECANCELED where the process is asked to stop meanwhile. */
static int wait_for(int fd, short events, int64_t deadline)
{
    struct pollfd one = {.fd = fd, .events = events};
    for (;;) {
        int64_t left = (deadline - ot_clock_ns()) / 1000000;
        int ready = poll(&one, 1, left > RETRY_MS ? RETRY_MS : left > 0 ? (int)left : 0);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return -1;
        errno = ot_stop_check() != OT_OK ? ECANCELED : left <= 0 ? ETIMEDOUT : 0;
        if (errno != 0)
            return -1;
    }
}

/* All bytes, or -1 with errno. */
static int move_all(int fd, void *data, size_t bytes, int sending, int64_t deadline)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t moved = sending ? send(fd, (char *)data + at, bytes - at, MSG_NOSIGNAL)
                                : recv(fd, (char *)data + at, bytes - at, 0);
        if (moved == 0) {
            errno = ECONNRESET;
            return -1;
        }
        if (moved > 0)
            at += (size_t)moved;
        else if (errno != EINTR && errno != EAGAIN)
            return -1;
        else if (errno == EAGAIN && wait_for(fd, sending ? POLLOUT : POLLIN, deadline) != 0)
            return -1;
    }
    return 0;
}

static void close_keeping(int fd, int error)
{
    close(fd);
    errno = error;
}

/* A machine that has gone without a word is missed within a minute. */
static void tune(int fd)
{
    const int on = 1, idle_s = 20, interval_s = 5, probes = 6;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static int connect_one(const struct addrinfo *to, int64_t deadline)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = 0;
    socklen_t size = sizeof error;
    if (fd < 0)
        return -1;
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
        error = errno == EINPROGRESS && wait_for(fd, POLLOUT, deadline) == 0 ? 0 : errno;
        if (error == 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
        tune(fd);
        return fd;
    }
    close_keeping(fd, error);
    return -1;
}

/* NULL with getaddrinfo's code where the name is not known. */
static struct addrinfo *look_up(const address *at, int flags, int *unknown)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
    struct addrinfo *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%u", at->port);
    *unknown = getaddrinfo(at->host, port, &hints, &found);
    return *unknown == 0 ? found : NULL;
}

/* Again and again: who is wanted may be slower to start, and its name to be known. */
static int connect_to(const address *to, int64_t deadline, int *unknown)
{
    for (;;) {
        struct addrinfo *found = look_up(to, 0, unknown);
        int fd = -1;
        for (const struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next)
            fd = connect_one(a, deadline);
        int error = errno;
        if (found != NULL)
            freeaddrinfo(found);
        errno = error;
        if (fd >= 0 || ot_clock_ns() > deadline || ot_stop_check() != OT_OK)
            return fd;
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000}, NULL);
    }
}

static int listen_at(const struct sockaddr *at, socklen_t bytes)
{
    const int on = 1, off = 0;
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (at->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, at, bytes) == 0 && listen(fd, 2 * OT_RANKS_MAX) == 0)
        return fd;
    close_keeping(fd, errno);
    return -1;
}

/* At every address of this machine; port 0: any. */
static int listen_anywhere(uint32_t port)
{
    const struct sockaddr_in6 six = {
        .sin6_family = AF_INET6, .sin6_addr = in6addr_any, .sin6_port = htons((uint16_t)port)};
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = listen_at((const struct sockaddr *)&six, sizeof six);
    return fd >= 0 || errno == EADDRINUSE ? fd : listen_at((const struct sockaddr *)&four, sizeof four);
}

/* At the address that was asked for, or anywhere where that is not this machine's own name for itself. */
static int listen_as_asked(const address *at)
{
    int fd = -1, unknown;
    struct addrinfo *found = look_up(at, AI_PASSIVE, &unknown);
    errno = EADDRNOTAVAIL;
    for (const struct addrinfo *a = found; a != NULL && fd < 0 && errno != EADDRINUSE; a = a->ai_next)
        fd = listen_at(a->ai_addr, a->ai_addrlen);
    int error = errno;
    if (found != NULL)
        freeaddrinfo(found);
    errno = error;
    return fd >= 0 || error == EADDRINUSE ? fd : listen_anywhere(at->port);
}

static uint32_t port_of(int fd)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    char port[16] = "0";
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) == 0)
        getnameinfo((struct sockaddr *)&own, bytes, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    return (uint32_t)atoi(port);
}

/* Where the other end of a connection is, in numbers. */
static void peer_host(int fd, char host[HOST_BYTES])
{
    static const char mapped[] = "::ffff:";
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof peer;
    host[0] = '\0';
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0)
        getnameinfo((struct sockaddr *)&peer, bytes, host, HOST_BYTES, NULL, 0, NI_NUMERICHOST);
    size_t skipped = sizeof mapped - 1;
    if (strncmp(host, mapped, skipped) == 0 && strchr(host, '.') != NULL)
        memmove(host, host + skipped, strlen(host) - skipped + 1);
}

/* ---- meeting ---- */

typedef struct meeting {
    tcp_transport *t;
    address master, all[OT_RANKS_MAX];
    int listener;
    int unknown; /* why the name of the one called last has no address, as getaddrinfo says it; 0: it has */
    int64_t deadline;
} meeting;

static int fail_meeting(const meeting *m, const char *what)
{
    ot_transport *base = &m->t->base;
    snprintf(base->error, sizeof base->error,
             "rank %d of %d, at %.64s port %u (MASTER_ADDR, MASTER_PORT): %.80s: %s", base->rank, base->size,
             m->master.host, m->master.port, what,
             m->unknown != 0 && m->unknown != EAI_SYSTEM ? gai_strerror(m->unknown) : strerror(errno));
    return -1;
}

static int say_hello(const meeting *m, int fd)
{
    hello own = {.magic = magic,
                 .size = (uint32_t)m->t->base.size,
                 .rank = (uint32_t)m->t->base.rank,
                 .port = m->listener >= 0 ? port_of(m->listener) : 0};
    return move_all(fd, &own, sizeof own, 1, m->deadline);
}

/* Takes one connection where a rank from `first` on that is still missing is at the other end; strangers are
 * turned away. */
static int accept_one(meeting *m, int first)
{
    hello theirs;
    if (wait_for(m->listener, POLLIN, m->deadline) != 0)
        return -1;
    int fd = accept4(m->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? 0 : -1;
    tune(fd);
    if (move_all(fd, &theirs, sizeof theirs, 0, deadline_in(HELLO_S)) != 0 || theirs.magic != magic ||
        theirs.size != (uint32_t)m->t->base.size || theirs.rank < (uint32_t)first ||
        theirs.rank >= theirs.size || m->t->links[theirs.rank].fd >= 0) {
        close(fd);
        return 0;
    }
    m->t->links[theirs.rank].fd = fd;
    peer_host(fd, m->all[theirs.rank].host);
    m->all[theirs.rank].port = theirs.port;
    return 0;
}

static int accept_from(meeting *m, int first)
{
    ot_transport *base = &m->t->base;
    for (int peer = first; peer < base->size; peer++)
        while (m->t->links[peer].fd < 0)
            if (accept_one(m, first) != 0) {
                char what[48];
                snprintf(what, sizeof what, "rank %d has not come", peer);
                return fail_meeting(m, what);
            }
    return 0;
}

static int lead(meeting *m)
{
    m->listener = listen_as_asked(&m->master);
    if (m->listener < 0)
        return fail_meeting(m, "cannot listen");
    if (accept_from(m, 1) != 0)
        return -1;
    for (int peer = 1; peer < m->t->base.size; peer++)
        if (move_all(m->t->links[peer].fd, m->all, sizeof m->all, 1, m->deadline) != 0)
            return fail_meeting(m, "a rank has left");
    return 0;
}

/* An address of rank 0's own machine is known there alone. */
static int is_local(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

static int follow(meeting *m)
{
    tcp_transport *t = m->t;
    char first_host[HOST_BYTES];
    m->listener = listen_anywhere(0);
    if (m->listener < 0)
        return fail_meeting(m, "cannot listen at a port of its own");
    t->links[0].fd = connect_to(&m->master, m->deadline, &m->unknown);
    if (t->links[0].fd < 0)
        return fail_meeting(m, "rank 0 does not answer");
    if (say_hello(m, t->links[0].fd) != 0 ||
        move_all(t->links[0].fd, m->all, sizeof m->all, 0, m->deadline) != 0)
        return fail_meeting(m, "not all ranks have come to rank 0");
    peer_host(t->links[0].fd, first_host);
    for (int peer = 1; peer < t->base.rank; peer++) {
        address *to = &m->all[peer];
        to->host[HOST_BYTES - 1] = '\0';
        if (is_local(to->host))
            memcpy(to->host, first_host, sizeof first_host);
        t->links[peer].fd = connect_to(to, m->deadline, &m->unknown);
        if (t->links[peer].fd < 0 || say_hello(m, t->links[peer].fd) != 0)
            return fail_meeting(m, "another rank does not answer");
    }
    return accept_from(m, t->base.rank + 1);
}

ot_status ot_transport_open_tcp(const ot_world *world, double timeout_s, ot_transport **out)
{
    tcp_transport *t = calloc(1, sizeof *t);
    if (t == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %d ranks", world->size);
    if (world->size > OT_RANKS_MAX || strlen(world->host) >= HOST_BYTES) {
        free(t);
        return ot_fail(OT_ERR_USAGE, "%d ranks at %s: at most %d, and a name of %d bytes", world->size,
                       world->host, OT_RANKS_MAX, HOST_BYTES - 1);
    }
    t->base = (ot_transport){.rank = world->rank,
                             .size = world->size,
                             .start = tcp_start,
                             .test = tcp_test,
                             .close = tcp_close,
                             .leave = tcp_leave,
                             .left = tcp_left};
    for (int peer = 0; peer < OT_RANKS_MAX; peer++)
        t->links[peer].fd = -1;
    meeting m = {.t = t, .listener = -1, .deadline = deadline_in(timeout_s), .master.port = world->port};
    memcpy(m.master.host, world->host, strlen(world->host) + 1);
    int met = world->rank == 0 ? lead(&m) : follow(&m);
    if (m.listener >= 0)
        close(m.listener);
    if (met == 0) {
        *out = &t->base;
        return OT_OK;
    }
    ot_status status = ot_stop_check();
    if (status == OT_OK)
        status = ot_fail(OT_ERR_DEVICE, "%s", t->base.error);
    free_transport(t);
    return status;
}
