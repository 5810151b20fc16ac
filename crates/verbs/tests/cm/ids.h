/* Shared by the programs of this directory: ids of rdma_cm on loopback, on two event channels of
 * one process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include "../support/should.h"

/* The channels of the listener and of the client. */
static struct rdma_event_channel *server_events, *client_events;

static inline struct sockaddr_in loopback(uint16_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline struct sockaddr *as_sockaddr(struct sockaddr_in *at) { return (struct sockaddr *)at; }

static inline struct rdma_cm_id *new_id(struct rdma_event_channel *channel) {
    struct rdma_cm_id *id;
    MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    return id;
}

/* The next event, which must be of this type; it is not acknowledged. */
static inline struct rdma_cm_event *event(struct rdma_event_channel *channel,
                                          enum rdma_cm_event_type type) {
    struct rdma_cm_event *event;
    MUST(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != type) {
        printf("%s (%d) instead of %s\n", rdma_event_str(event->event), event->status,
               rdma_event_str(type));
        exit(1);
    }
    return event;
}

static inline struct rdma_cm_id *next(struct rdma_event_channel *channel,
                                      enum rdma_cm_event_type type) {
    struct rdma_cm_event *e = event(channel, type);
    struct rdma_cm_id *id = e->id;
    MUST(rdma_ack_cm_event(e) == 0);
    return id;
}

static inline int has_event(struct rdma_event_channel *channel) {
    struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static inline struct rdma_cm_id *listener(int backlog) {
    struct rdma_cm_id *id = new_id(server_events);
    struct sockaddr_in any = loopback(0);
    MUST(rdma_bind_addr(id, as_sockaddr(&any)) == 0 && rdma_listen(id, backlog) == 0);
    return id;
}

static inline void create_pair(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    MUST(rdma_create_qp(id, NULL, &attr) == 0);
}

/* An id with a route to a port on loopback. */
static inline struct rdma_cm_id *resolved_id(uint16_t port) {
    struct rdma_cm_id *id = new_id(client_events);
    struct sockaddr_in to = loopback(port);
    MUST(rdma_resolve_addr(id, NULL, as_sockaddr(&to), 1000) == 0);
    MUST(next(client_events, RDMA_CM_EVENT_ADDR_RESOLVED) == id &&
         rdma_resolve_route(id, 1000) == 0);
    MUST(next(client_events, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
    return id;
}

/* An id that has sent a connection request. */
static inline struct rdma_cm_id *connecting_id(uint16_t port) {
    struct rdma_cm_id *id = resolved_id(port);
    struct rdma_conn_param param = {.responder_resources = 3,
                                    .initiator_depth = 5,
                                    .private_data = "who",
                                    .private_data_len = 3};
    create_pair(id);
    MUST(rdma_connect(id, &param) == 0);
    return id;
}

static inline void destroy(struct rdma_cm_id *id) {
    if (id->qp)
        rdma_destroy_qp(id);
    SHOULD(rdma_destroy_id(id) == 0);
}

/* The number of descriptors whose names begin with a prefix. */
static inline int descriptors(const char *prefix) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(all));) {
        char name[64] = "";
        count += readlinkat(dirfd(all), entry->d_name, name, sizeof name - 1) > 0 &&
                 !strncmp(name, prefix, strlen(prefix));
    }
    closedir(all);
    return count;
}

/* Waits for sockets: one that a side has closed lingers for a moment. */
static inline void wait_for_sockets(int before) {
    for (int tries = 0; tries < 10000 && descriptors("socket:") > before; tries++)
        usleep(1000);
}
