/* Peers that do not speak iWARP or that vanish: other bytes, a peer that ends before its answer,
 * the last message of a connection. Prints whatever fails. */
#include "ids.h"

/* A TCP socket that listens on loopback, and its port. */
static int plain_listener(uint16_t *port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = loopback(0);
    socklen_t octets = sizeof at;
    MUST(fd >= 0 && bind(fd, as_sockaddr(&at), sizeof at) == 0 && listen(fd, 1) == 0 &&
         getsockname(fd, as_sockaddr(&at), &octets) == 0);
    *port = at.sin_port;
    return fd;
}

/* The client receives this event with this status. */
static void expect_end(struct rdma_cm_id *client, enum rdma_cm_event_type type, int status) {
    struct rdma_cm_event *e = event(client_events, type);
    if (e->status != status)
        printf("status %d instead of %d\n", e->status, status);
    SHOULD(e->id == client && e->status == status);
    rdma_ack_cm_event(e);
    SHOULD(!has_event(client_events) &&
           (type != RDMA_CM_EVENT_REJECTED || client->qp->state == IBV_QPS_ERR));
    FAILS(rdma_connect(client, NULL), EINVAL);
    SHOULD(rdma_disconnect(client) == 0 && !has_event(client_events));
    destroy(client);
}

/* A listener reads the request and sends these bytes instead of a reply. */
static void bad_reply(const char *reply, size_t octets, int reset, enum rdma_cm_event_type type,
                     int status) {
    uint16_t port;
    int fd = plain_listener(&port);
    struct rdma_cm_id *client = connecting_id(port);
    int peer = accept(fd, NULL, NULL);
    char request[20];
    MUST(peer >= 0 && recv(peer, request, sizeof request, MSG_WAITALL) == sizeof request);
    SHOULD(!memcmp(request, "MPA ID Req Frame", 16));
    MUST(octets == 0 || send(peer, reply, octets, MSG_NOSIGNAL) == (ssize_t)octets);
    if (reset) {
        struct linger now = {.l_onoff = 1};
        MUST(setsockopt(peer, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    }
    close(peer);
    expect_end(client, type, status);
    close(fd);
}

/* A client sends these bytes and closes; the listener gets no event of it. */
static void bad_request(struct rdma_cm_id *at, const char *request, size_t octets) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = loopback(rdma_get_src_port(at));
    MUST(fd >= 0 && connect(fd, as_sockaddr(&to), sizeof to) == 0 &&
         send(fd, request, octets, MSG_NOSIGNAL) == (ssize_t)octets);
    close(fd);
    struct rdma_cm_id *client = connecting_id(to.sin_port), *server;
    server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    SHOULD(rdma_get_dst_port(server) == rdma_get_src_port(client) && !has_event(server_events));
    destroy(server);
    SHOULD(next(client_events, RDMA_CM_EVENT_REJECTED) == client);
    destroy(client);
}

/* A peer process is killed in this state of its connection. */
static void peer_killed(struct rdma_cm_id *at, int accepts) {
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        client_events = rdma_create_event_channel();
        MUST(client_events);
        struct rdma_cm_id *client = connecting_id(rdma_get_src_port(at));
        if (accepts)
            SHOULD(next(client_events, RDMA_CM_EVENT_ESTABLISHED) == client);
        pause();
    }
    struct rdma_cm_id *server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    create_pair(server);
    if (accepts)
        SHOULD(rdma_accept(server, NULL) == 0 &&
               next(server_events, RDMA_CM_EVENT_ESTABLISHED) == server);
    MUST(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    if (accepts) {
        SHOULD(next(server_events, RDMA_CM_EVENT_DISCONNECTED) == server &&
               server->qp->state == IBV_QPS_ERR);
    } else {
        /* The end may have been seen already; then an event reports it. */
        int begun = rdma_accept(server, NULL);
        if (begun != 0 && errno != ECONNRESET)
            SHOULD(!"refused for another reason");
        if (begun == 0) {
            struct rdma_cm_event *e;
            MUST(rdma_get_cm_event(server_events, &e) == 0);
            SHOULD(e->id == server);
            if (e->event == RDMA_CM_EVENT_ESTABLISHED) {
                rdma_ack_cm_event(e);
                e = event(server_events, RDMA_CM_EVENT_DISCONNECTED);
            }
            rdma_ack_cm_event(e);
        }
    }
    destroy(server);
}

/* The end of a connection arrives behind its last message, also if the program reads events
 * first and polls afterwards. */
static void last_message(void) {
    struct rdma_cm_id *at = listener(0), *client = connecting_id(rdma_get_src_port(at));
    struct rdma_cm_id *server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct ibv_recv_wr recv = {.wr_id = 7}, *bad_recv;
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
    struct rdma_cm_event *e;
    struct ibv_wc wc;
    int flags = fcntl(server_events->fd, F_GETFL), heard = 0;
    create_pair(server);
    MUST(ibv_post_recv(server->qp, &recv, &bad_recv) == 0 && rdma_accept(server, NULL) == 0);
    SHOULD(next(server_events, RDMA_CM_EVENT_ESTABLISHED) == server &&
           next(client_events, RDMA_CM_EVENT_ESTABLISHED) == client);
    MUST(fcntl(server_events->fd, F_SETFL, flags | O_NONBLOCK) == 0);
    MUST(ibv_post_send(client->qp, &send, &bad_send) == 0 && rdma_disconnect(client) == 0);
    while (rdma_get_cm_event(server_events, &e) != 0) {
        int why = errno;
        MUST(why == EAGAIN);
        heard += ibv_poll_cq(server->recv_cq, 1, &wc) == 1 && wc.wr_id == 7 &&
                 wc.status == IBV_WC_SUCCESS;
    }
    SHOULD(e->event == RDMA_CM_EVENT_DISCONNECTED && e->id == server && heard == 1);
    rdma_ack_cm_event(e);
    MUST(fcntl(server_events->fd, F_SETFL, flags) == 0);
    SHOULD(next(client_events, RDMA_CM_EVENT_DISCONNECTED) == client);
    destroy(client);
    destroy(server);
    destroy(at);
}

int main(void) {
    const char garbage[64] = "HTTP/1.1 200 OK";
    server_events = rdma_create_event_channel();
    client_events = rdma_create_event_channel();
    MUST(server_events && client_events);
    bad_reply(NULL, 0, 0, RDMA_CM_EVENT_REJECTED, -ECONNRESET);
    bad_reply(NULL, 0, 1, RDMA_CM_EVENT_REJECTED, -ECONNRESET);
    bad_reply("MPA ID Rep", 10, 0, RDMA_CM_EVENT_REJECTED, -ECONNRESET);
    bad_reply(garbage, sizeof garbage, 0, RDMA_CM_EVENT_CONNECT_ERROR, -EPROTO);
    struct rdma_cm_id *at = listener(0);
    bad_request(at, "", 0);
    bad_request(at, "MPA ID Req Fr", 13);
    bad_request(at, garbage, sizeof garbage);
    peer_killed(at, 0);
    peer_killed(at, 1);
    destroy(at);
    last_message();
    SHOULD(!has_event(server_events) && !has_event(client_events));
    rdma_destroy_event_channel(server_events);
    rdma_destroy_event_channel(client_events);
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
