/* Misuse of rdma_cm, and its edge cases; prints whatever fails. */
#include "ids.h"
#include <stdint.h>

static void arguments(void) {
    struct rdma_cm_id *id;
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    struct sockaddr_in to = loopback(htons(9)),
                       foreign = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("192.0.2.1")};
    struct sockaddr_in6 six = {
        .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT, .sin6_port = htons(9)};
    struct rdma_conn_param much = {.responder_resources = 200};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    uint8_t tos = 8;
    int mask, yes = 1;
    FAILS(rdma_create_id(server_events, NULL, NULL, RDMA_PS_TCP), EINVAL);
    FAILS(rdma_create_id(server_events, &id, NULL, 77), EINVAL);
    FAILS(rdma_create_id(server_events, &id, NULL, RDMA_PS_UDP), EOPNOTSUPP);
    FAILS(rdma_create_id(server_events, &id, NULL, RDMA_PS_IB), EOPNOTSUPP);
    FAILS(rdma_destroy_id(NULL), EINVAL);
    FAILS(rdma_get_cm_event(NULL, NULL), EINVAL);
    FAILS(rdma_get_cm_event(server_events, NULL), EINVAL);
    FAILS(rdma_ack_cm_event(NULL), EINVAL);
    id = new_id(server_events);
    FAILS(rdma_bind_addr(id, NULL), EINVAL);
    FAILS(rdma_bind_addr(id, (struct sockaddr *)&path), EINVAL);
    FAILS(rdma_bind_addr(id, as_sockaddr(&foreign)), EADDRNOTAVAIL);
    FAILS(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
    FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&path, 1), EINVAL);
    FAILS(rdma_resolve_addr(id, NULL, as_sockaddr(&foreign), 1), EACCES);
    FAILS(rdma_resolve_addr(id, (struct sockaddr *)&six, as_sockaddr(&to), 1), EINVAL);
    FAILS(rdma_resolve_route(id, 1), EINVAL);
    FAILS(rdma_connect(id, NULL), EINVAL);
    FAILS(rdma_accept(id, NULL), EINVAL);
    FAILS(rdma_reject(id, NULL, 0), EINVAL);
    FAILS(rdma_disconnect(id), EINVAL);
    FAILS(rdma_establish(id), EINVAL);
    FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_get_request(id, &id), EINVAL);
    FAILS(rdma_create_qp(id, NULL, NULL), EINVAL);
    FAILS(rdma_join_multicast(id, as_sockaddr(&to), NULL), EOPNOTSUPP);
    FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &yes, sizeof yes), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_IB, 2, &yes, sizeof yes), ENOSYS);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, 77, &yes, sizeof yes), ENOSYS);
    FAILS(rdma_set_option(NULL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &yes, sizeof yes), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, NULL, sizeof yes), EFAULT);
    SHOULD(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) == 0);
    SHOULD(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes) == 0);
    FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
    SHOULD(rdma_get_src_port(id) == 0 && rdma_get_dst_port(NULL) == 0);
    SHOULD(!id->verbs && !id->qp && !has_event(server_events));
    destroy(id);
    id = resolved_id(htons(9));
    FAILS(rdma_connect(id, NULL), EINVAL);
    create_pair(id);
    FAILS(rdma_connect(id, &much), EINVAL);
    FAILS(rdma_resolve_addr(id, NULL, as_sockaddr(&to), 1), EINVAL);
    FAILS(rdma_resolve_route(id, 1), EINVAL);
    FAILS(rdma_bind_addr(id, as_sockaddr(&to)), EINVAL);
    FAILS(rdma_listen(id, 1), EINVAL);
    SHOULD(id->verbs && id->pd && id->port_num == 1 && id->qp->pd == id->pd &&
           rdma_get_dst_port(id) == htons(9));
    SHOULD(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr ==
           htonl(INADDR_LOOPBACK));
    SHOULD(
        !memcmp(id->route.addr.addr.ibaddr.sgid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16));
    SHOULD(id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq->cq_context == id &&
           id->route.num_paths == 0);
    FAILS(rdma_create_qp(id, NULL, &(struct ibv_qp_init_attr){.qp_type = IBV_QPT_RC}), EINVAL);
    FAILS(rdma_create_srq(id, NULL, NULL), EINVAL);
    FAILS(rdma_create_srq_ex(id, &(struct ibv_srq_init_attr_ex){.comp_mask = 0}), EINVAL);
    destroy(id);
}

static void addresses(void) {
    struct rdma_cm_id *first = listener(0), *second = new_id(server_events),
                      *wild = new_id(server_events);
    struct sockaddr_in taken = loopback(rdma_get_src_port(first));
    /* A loopback address does not select a device. */
    SHOULD(taken.sin_port != 0 && !first->verbs && first->port_num == 0);
    SHOULD(rdma_get_peer_addr(first)->sa_family == AF_INET && rdma_get_dst_port(first) == 0);
    FAILS(rdma_bind_addr(second, as_sockaddr(&taken)), EADDRINUSE);
    FAILS(rdma_listen(first, 0), EINVAL);
    FAILS(rdma_bind_addr(first, as_sockaddr(&taken)), EINVAL);
    SHOULD(rdma_listen(wild, 0) == 0 && rdma_get_src_port(wild) != 0 && !wild->verbs);
    destroy(first);
    SHOULD(rdma_bind_addr(second, as_sockaddr(&taken)) == 0 && rdma_listen(second, 0) == 0);
    destroy(second);
    destroy(wild);
}

/* Both ends of a connection from the request to the end, and their events. */
static void whole_life(void) {
    struct rdma_cm_id *at = listener(0), *client = connecting_id(rdma_get_src_port(at));
    struct rdma_cm_event *e = event(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *server = e->id;
    struct rdma_conn_param param = {.responder_resources = 2,
                                    .initiator_depth = RDMA_MAX_INIT_DEPTH,
                                    .private_data = "welcome",
                                    .private_data_len = 7};
    SHOULD(e->listen_id == at && server->channel == server_events && server->verbs && server->pd);
    SHOULD(e->param.conn.private_data_len == 3 && !memcmp(e->param.conn.private_data, "who", 3));
    SHOULD(e->param.conn.initiator_depth == 3 && e->param.conn.responder_resources == 5);
    SHOULD(rdma_get_dst_port(server) == rdma_get_src_port(client) &&
           rdma_get_src_port(server) == rdma_get_dst_port(client));
    rdma_ack_cm_event(e);
    FAILS(rdma_accept(server, NULL), EINVAL);
    create_pair(server);
    SHOULD(rdma_accept(server, &param) == 0);
    FAILS(rdma_accept(server, &param), EINVAL);
    FAILS(rdma_reject(server, NULL, 0), EINVAL);
    e = event(server_events, RDMA_CM_EVENT_ESTABLISHED);
    SHOULD(e->id == server && e->param.conn.initiator_depth == 3 &&
           e->param.conn.responder_resources == 2);
    rdma_ack_cm_event(e);
    e = event(client_events, RDMA_CM_EVENT_ESTABLISHED);
    SHOULD(e->id == client && e->param.conn.initiator_depth == 2 &&
           e->param.conn.responder_resources == 3);
    SHOULD(e->param.conn.private_data_len == 7 &&
           !memcmp(e->param.conn.private_data, "welcome", 7));
    rdma_ack_cm_event(e);
    SHOULD(client->qp->state == IBV_QPS_RTS && server->qp->state == IBV_QPS_RTS);
    SHOULD(rdma_notify(client, IBV_EVENT_COMM_EST) == 0);
    SHOULD(rdma_disconnect(client) == 0);
    SHOULD(next(client_events, RDMA_CM_EVENT_DISCONNECTED) == client &&
           next(server_events, RDMA_CM_EVENT_DISCONNECTED) == server);
    SHOULD(rdma_disconnect(client) == 0 && rdma_disconnect(server) == 0 &&
           !has_event(server_events) && !has_event(client_events));
    destroy(client);
    destroy(server);
    destroy(at);
}

/* No listener; a listener that rejects; a listener that is destroyed. */
static void refusals(void) {
    struct rdma_cm_id *at = listener(0), *client = resolved_id(htons(1)), *server;
    struct rdma_cm_event *e;
    struct ibv_wc wc;
    char inbox[8];
    create_pair(client);
    struct ibv_mr *mr = rdma_reg_msgs(client, inbox, sizeof inbox);
    MUST(mr && rdma_post_recv(client, NULL, inbox, sizeof inbox, mr) == 0);
    SHOULD(rdma_connect(client, NULL) == 0);
    e = event(client_events, RDMA_CM_EVENT_REJECTED);
    SHOULD(e->id == client && e->status == -ECONNREFUSED && e->param.conn.private_data_len == 0);
    rdma_ack_cm_event(e);
    SHOULD(client->qp->state == IBV_QPS_ERR && ibv_poll_cq(client->recv_cq, 1, &wc) == 1 &&
           wc.status == IBV_WC_WR_FLUSH_ERR);
    SHOULD(rdma_dereg_mr(mr) == 0);
    FAILS(rdma_connect(client, NULL), EINVAL);
    destroy(client);

    client = connecting_id(rdma_get_src_port(at));
    server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    SHOULD(rdma_reject(server, "no", 2) == 0);
    FAILS(rdma_reject(server, "no", 2), EINVAL);
    create_pair(server);
    FAILS(rdma_accept(server, NULL), EINVAL);
    rdma_destroy_qp(server);
    rdma_destroy_qp(server);
    FAILS(rdma_connect(client, NULL), EINVAL);
    e = event(client_events, RDMA_CM_EVENT_REJECTED);
    SHOULD(e->status == -ECONNREFUSED && e->param.conn.private_data_len == 2 &&
           !memcmp(e->param.conn.private_data, "no", 2));
    rdma_ack_cm_event(e);
    destroy(client);
    destroy(server);

    client = connecting_id(rdma_get_src_port(at));
    while (!has_event(server_events))
        ;
    destroy(at);
    SHOULD(!has_event(server_events) && next(client_events, RDMA_CM_EVENT_REJECTED) == client);
    destroy(client);
}

/* A request that precedes its listener by a moment is accepted. */
static void early(void) {
    struct rdma_cm_id *at = new_id(server_events), *client, *server;
    struct sockaddr_in any = loopback(0);
    MUST(rdma_bind_addr(at, as_sockaddr(&any)) == 0);
    client = connecting_id(rdma_get_src_port(at));
    SHOULD(!has_event(client_events) && rdma_listen(at, 0) == 0);
    server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    destroy(server);
    SHOULD(next(client_events, RDMA_CM_EVENT_REJECTED) == client);
    destroy(client);
    destroy(at);
}

/* Requests wait up to the listener's backlog; destroying an unanswered id rejects its request. */
static void backlog(void) {
    struct rdma_cm_id *at = listener(1), *first = connecting_id(rdma_get_src_port(at)), *second,
                      *server;
    while (!has_event(server_events))
        ;
    second = connecting_id(rdma_get_src_port(at));
    SHOULD(next(client_events, RDMA_CM_EVENT_REJECTED) == second);
    server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    destroy(server);
    SHOULD(next(client_events, RDMA_CM_EVENT_REJECTED) == first);
    destroy(first);
    destroy(second);
    destroy(at);
}

/* A peer that disconnects unanswered; a queue pair that is destroyed in a connection; an id that
 * is destroyed in one. */
static void vanished(void) {
    struct rdma_cm_id *at = listener(0), *client = connecting_id(rdma_get_src_port(at)), *server;
    server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    destroy(client);
    create_pair(server);
    /* When the next request arrives, the end of the first has arrived too. */
    client = connecting_id(rdma_get_src_port(at));
    struct rdma_cm_id *second = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    FAILS(rdma_accept(server, NULL), ECONNRESET);
    destroy(server);
    destroy(second);
    SHOULD(next(client_events, RDMA_CM_EVENT_REJECTED) == client);
    destroy(client);

    client = connecting_id(rdma_get_src_port(at));
    server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    create_pair(server);
    MUST(rdma_accept(server, NULL) == 0);
    next(server_events, RDMA_CM_EVENT_ESTABLISHED);
    next(client_events, RDMA_CM_EVENT_ESTABLISHED);
    rdma_destroy_qp(server);
    SHOULD(next(server_events, RDMA_CM_EVENT_DISCONNECTED) == server &&
           next(client_events, RDMA_CM_EVENT_DISCONNECTED) == client);
    destroy(server);
    destroy(client);

    client = connecting_id(rdma_get_src_port(at));
    server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    create_pair(server);
    MUST(rdma_accept(server, NULL) == 0);
    next(server_events, RDMA_CM_EVENT_ESTABLISHED);
    next(client_events, RDMA_CM_EVENT_ESTABLISHED);
    struct rdma_cm_id was = *client;
    SHOULD(rdma_destroy_id(client) == 0);
    SHOULD(next(server_events, RDMA_CM_EVENT_DISCONNECTED) == server && !has_event(client_events));
    destroy(server);
    /* The id's other objects remain, as with rdma-core. */
    SHOULD(ibv_destroy_qp(was.qp) == 0 && ibv_destroy_cq(was.send_cq) == 0 &&
           ibv_destroy_cq(was.recv_cq) == 0);
    SHOULD(ibv_destroy_comp_channel(was.send_cq_channel) == 0 &&
           ibv_destroy_comp_channel(was.recv_cq_channel) == 0);
    destroy(at);
}

static void every_state(void) {
    struct rdma_cm_id *at = listener(0), *id = new_id(client_events);
    struct sockaddr_in to = loopback(rdma_get_src_port(at));
    destroy(id);
    id = new_id(client_events);
    MUST(rdma_resolve_addr(id, NULL, as_sockaddr(&to), 1000) == 0 && has_event(client_events));
    destroy(id);
    SHOULD(!has_event(client_events));
    destroy(resolved_id(to.sin_port));
    destroy(connecting_id(to.sin_port));
    /* The request may have arrived or not; no event reports a peer that is gone. */
    destroy(at);
    SHOULD(!has_event(server_events));
}

/* Moves a queue pair of the program as rdma_init_qp_attr states: the changes are those that siw
 * returns. */
static void move(struct rdma_cm_id *id, struct ibv_qp *pair, enum ibv_qp_state to, int changes) {
    struct ibv_qp_attr attr = {.qp_state = to, .qp_access_flags = -1};
    int mask = -1;
    SHOULD(rdma_init_qp_attr(id, &attr, &mask) == 0 && mask == (changes | IBV_QP_PORT) &&
           attr.port_num == 1);
    SHOULD(attr.qp_state == to && !(attr.qp_access_flags & IBV_ACCESS_LOCAL_WRITE));
    SHOULD(ibv_modify_qp(pair, &attr, mask) == 0);
}

static void moved(struct rdma_cm_id *id, struct ibv_qp *pair) {
    move(id, pair, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
    move(id, pair, IBV_QPS_RTR, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
    move(id, pair, IBV_QPS_RTS, 0);
}

static enum ibv_qp_state state(struct ibv_qp *pair) {
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    MUST(ibv_query_qp(pair, &attr, IBV_QP_STATE, &init) == 0);
    return attr.qp_state;
}

/* Queue pairs that the program created, passed by number and used again. */
static void own_pairs(void) {
    struct rdma_cm_id *at = listener(0), *client = resolved_id(rdma_get_src_port(at)), *server;
    struct ibv_cq *cq = ibv_create_cq(client->verbs, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *pairs[2] = {ibv_create_qp(client->pd, &attr), ibv_create_qp(client->pd, &attr)};
    struct ibv_qp_attr change = {.qp_state = IBV_QPS_SQE};
    int mask;
    MUST(cq && pairs[0] && pairs[1]);
    FAILS(rdma_connect(client, &(struct rdma_conn_param){.qp_num = 0xfffff}), EINVAL);
    FAILS(rdma_init_qp_attr(client, NULL, &mask), EINVAL);
    FAILS(rdma_init_qp_attr(client, &change, NULL), EINVAL);
    FAILS(rdma_init_qp_attr(NULL, &change, &mask), EINVAL);
    FAILS(rdma_init_qp_attr(at, &change, &mask), EINVAL);
    for (int round = 0; round < 2; round++) {
        struct rdma_conn_param param = {.qp_num = pairs[0]->qp_num};
        move(client, pairs[0], IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
        FAILS(rdma_establish(client), EINVAL);
        SHOULD(state(pairs[0]) == IBV_QPS_INIT && rdma_connect(client, &param) == 0);
        FAILS(rdma_init_qp_attr(client, &change, &mask), EINVAL);
        server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
        moved(server, pairs[1]);
        param.qp_num = pairs[1]->qp_num;
        SHOULD(state(pairs[1]) == IBV_QPS_RTR && rdma_accept(server, &param) == 0);
        SHOULD(next(server_events, RDMA_CM_EVENT_ESTABLISHED) == server &&
               next(client_events, RDMA_CM_EVENT_ESTABLISHED) == client);
        moved(client, pairs[0]);
        SHOULD(!client->qp && rdma_establish(client) == 0);
        SHOULD(state(pairs[0]) == IBV_QPS_RTS && state(pairs[1]) == IBV_QPS_RTS);
        change.qp_state = IBV_QPS_ERR;
        SHOULD(ibv_modify_qp(pairs[round], &change, IBV_QP_STATE) == 0 &&
               state(pairs[round]) == IBV_QPS_ERR);
        SHOULD(next(server_events, RDMA_CM_EVENT_DISCONNECTED) == server &&
               next(client_events, RDMA_CM_EVENT_DISCONNECTED) == client);
        SHOULD(state(pairs[0]) == IBV_QPS_ERR && state(pairs[1]) == IBV_QPS_ERR &&
               rdma_disconnect(client) == 0);
        FAILS(rdma_establish(client), EINVAL);
        change.qp_state = IBV_QPS_RESET;
        SHOULD(ibv_modify_qp(pairs[0], &change, IBV_QP_STATE) == 0 &&
               ibv_modify_qp(pairs[1], &change, IBV_QP_STATE) == 0);
        SHOULD(pairs[0]->state == IBV_QPS_RESET && state(pairs[0]) == IBV_QPS_INIT &&
               state(pairs[1]) == IBV_QPS_INIT);
        change.qp_state = IBV_QPS_SQE;
        destroy(client);
        destroy(server);
        client = resolved_id(rdma_get_src_port(at));
    }
    SHOULD(ibv_destroy_qp(pairs[0]) == 0 && ibv_destroy_qp(pairs[1]) == 0 &&
           ibv_destroy_cq(cq) == 0);
    destroy(client);
    destroy(at);
}

static void channels(void) {
    struct rdma_event_channel *third = rdma_create_event_channel();
    struct rdma_cm_event *e;
    struct rdma_cm_id *id = new_id(server_events), *alone = NULL;
    struct sockaddr_in to = loopback(htons(9));
    MUST(third && fcntl(third->fd, F_SETFL, O_NONBLOCK) == 0);
    FAILS(rdma_get_cm_event(third, &e), EAGAIN);
    MUST(rdma_resolve_addr(id, NULL, as_sockaddr(&to), 1000) == 0 && has_event(server_events));
    SHOULD(rdma_migrate_id(id, third) == 0 && id->channel == third);
    SHOULD(!has_event(server_events) && has_event(third) &&
           next(third, RDMA_CM_EVENT_ADDR_RESOLVED) == id && !has_event(third));
    SHOULD(rdma_migrate_id(id, NULL) == 0 && id->channel != third);
    FAILS(rdma_migrate_id(id, NULL), EINVAL);
    SHOULD(rdma_resolve_route(id, 1000) == 0 && id->event &&
           id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
    create_pair(id);
    FAILS(rdma_connect(id, NULL), ECONNREFUSED);
    SHOULD(rdma_migrate_id(id, third) == 0 && !id->event);
    destroy(id);
    SHOULD(rdma_create_id(NULL, &alone, third, RDMA_PS_TCP) == 0 && alone->context == third &&
           alone->channel);
    destroy(alone);
    rdma_destroy_event_channel(third);
}

/* Acknowledges once the first thread waits for that. */
static void *acknowledges(void *e) {
    sleeps(getpid());
    return (void *)(long)rdma_ack_cm_event(e);
}

/* Destroying or migrating an id waits until all its fetched events are acknowledged. */
static void unacknowledged(void) {
    struct rdma_cm_id *id = new_id(server_events);
    struct sockaddr_in to = loopback(htons(9));
    pthread_t thread;
    void *result = id;
    MUST(rdma_resolve_addr(id, NULL, as_sockaddr(&to), 1000) == 0);
    MUST(pthread_create(&thread, NULL, acknowledges,
                        event(server_events, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
    SHOULD(rdma_migrate_id(id, client_events) == 0 && pthread_join(thread, &result) == 0 &&
           !result);
    MUST(rdma_resolve_route(id, 1000) == 0);
    MUST(pthread_create(&thread, NULL, acknowledges,
                        event(client_events, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
    destroy(id);
    SHOULD(pthread_join(thread, &result) == 0 && !result);
}

static void *blocked(void *number) {
    struct rdma_cm_event *e;
    __atomic_store_n((int *)number, thread_number(), __ATOMIC_RELEASE);
    rdma_get_cm_event(server_events, &e);
    return NULL;
}

/* A thread that waits for an event can be cancelled, as in a read. */
static void cancelled(void) {
    pthread_t thread;
    void *result = NULL;
    int number = 0;
    MUST(pthread_create(&thread, NULL, blocked, &number) == 0);
    while (!__atomic_load_n(&number, __ATOMIC_ACQUIRE))
        usleep(100);
    sleeps(number);
    SHOULD(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 &&
           result == PTHREAD_CANCELED);
}

/* Without a descriptor left, calls that need one fail, and nothing else breaks. */
static void exhausted(void) {
    struct rdma_cm_id *at = listener(0), *client = resolved_id(rdma_get_src_port(at)), *id;
    struct rlimit before, none;
    create_pair(client);
    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 3;
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    SHOULD(rdma_create_event_channel() == NULL && errno == EMFILE);
    FAILS(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), EMFILE);
    FAILS(rdma_connect(client, NULL), EMFILE);
    FAILS(rdma_migrate_id(client, NULL), EMFILE);
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    SHOULD(rdma_connect(client, NULL) == 0);
    id = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    SHOULD(rdma_reject(id, NULL, 0) == 0 && next(client_events, RDMA_CM_EVENT_REJECTED) == client);
    destroy(id);
    destroy(client);

    /* One descriptor for the client and none for the server, which sees the request once it has
     * one. */
    client = resolved_id(rdma_get_src_port(at));
    create_pair(client);
    none.rlim_cur = dup(0) + 1;
    close(none.rlim_cur - 1);
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    SHOULD(rdma_connect(client, NULL) == 0 && !has_event(server_events));
    FAILS(dup(0), EMFILE);
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    id = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    destroy(id);
    SHOULD(next(client_events, RDMA_CM_EVENT_REJECTED) == client);
    destroy(client);
    destroy(at);
}

/* A child must not use its parent's objects, and may create its own. */
static void forked(void) {
    struct rdma_cm_id *at = listener(0), *client = connecting_id(rdma_get_src_port(at)), *server;
    int status = -1;
    server = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rdma_cm_event *e;
        wrong = 0;
        FAILS(rdma_accept(server, NULL), EINVAL);
        FAILS(rdma_get_cm_event(server_events, &e), EINVAL);
        FAILS(rdma_create_id(server_events, &server, NULL, RDMA_PS_TCP), EINVAL);
        destroy(client);
        destroy(server);
        destroy(at);
        rdma_destroy_event_channel(server_events);
        rdma_destroy_event_channel(client_events);
        server_events = rdma_create_event_channel();
        client_events = rdma_create_event_channel();
        MUST(server_events && client_events);
        whole_life();
        fflush(stdout);
        _exit(wrong);
    }
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    SHOULD(status == 0);
    create_pair(server);
    SHOULD(rdma_accept(server, NULL) == 0);
    SHOULD(next(server_events, RDMA_CM_EVENT_ESTABLISHED) == server &&
           next(client_events, RDMA_CM_EVENT_ESTABLISHED) == client);
    destroy(client);
    SHOULD(next(server_events, RDMA_CM_EVENT_DISCONNECTED) == server);
    destroy(server);
    destroy(at);
}

/* The errno of a wait for an event of `channel`. */
static void *waits(void *channel) {
    struct rdma_cm_event *event;
    return (void *)(intptr_t)(rdma_get_cm_event(channel, &event) ? errno : 0);
}

/* A channel is destroyed under a thread that waits on it, and another thread waits afterwards, as
 * rping of rdma-core 44 does before it ends. Both waits fail after a while. */
static void destroyed(void) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    pthread_t early, late;
    void *result;
    MUST(channel && pthread_create(&early, NULL, waits, channel) == 0);
    usleep(20000);
    rdma_destroy_event_channel(channel);
    MUST(pthread_create(&late, NULL, waits, channel) == 0);
    usleep(300000);
    SHOULD(pthread_tryjoin_np(early, &result) == EBUSY);
    SHOULD(pthread_tryjoin_np(late, &result) == EBUSY);
    SHOULD(pthread_join(early, &result) == 0 && (intptr_t)result == EBADF);
    SHOULD(pthread_join(late, &result) == 0 && (intptr_t)result == EBADF);
}

int main(void) {
    int sockets = descriptors("socket:");
    server_events = rdma_create_event_channel();
    client_events = rdma_create_event_channel();
    MUST(server_events && client_events);
    /* Create what the process creates once and keeps. */
    whole_life();
    wait_for_sockets(sockets);
    int before = descriptors("");
    arguments();
    addresses();
    whole_life();
    refusals();
    early();
    backlog();
    vanished();
    every_state();
    own_pairs();
    channels();
    unacknowledged();
    cancelled();
    destroyed();
    exhausted();
    forked();
    wait_for_sockets(sockets);
    SHOULD(descriptors("") <= before);
    rdma_destroy_event_channel(server_events);
    rdma_destroy_event_channel(client_events);
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
