/* Misuse of rdma_cm, and its edge cases; prints whatever fails. */
#include "ids.h"

static void arguments(void) {
    struct rdma_cm_id *id;
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    struct sockaddr_in to = loopback(htons(9)), foreign = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("192.0.2.1")};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT, .sin6_port = htons(9)};
    struct rdma_conn_param much = {.responder_resources = 200};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    uint8_t tos = 8;
    int mask, yes = 1;
    FAILS(rdma_create_id(here, NULL, NULL, RDMA_PS_TCP), EINVAL);
    FAILS(rdma_create_id(here, &id, NULL, 77), EINVAL);
    FAILS(rdma_create_id(here, &id, NULL, RDMA_PS_UDP), EOPNOTSUPP);
    FAILS(rdma_create_id(here, &id, NULL, RDMA_PS_IB), EOPNOTSUPP);
    FAILS(rdma_destroy_id(NULL), EINVAL);
    FAILS(rdma_get_cm_event(NULL, NULL), EINVAL);
    FAILS(rdma_get_cm_event(here, NULL), EINVAL);
    FAILS(rdma_ack_cm_event(NULL), EINVAL);
    id = id_at(here);
    FAILS(rdma_bind_addr(id, NULL), EINVAL);
    FAILS(rdma_bind_addr(id, (struct sockaddr *)&path), EINVAL);
    FAILS(rdma_bind_addr(id, sa(&foreign)), EADDRNOTAVAIL);
    FAILS(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
    FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&path, 1), EINVAL);
    FAILS(rdma_resolve_addr(id, NULL, sa(&foreign), 1), EACCES);
    FAILS(rdma_resolve_addr(id, (struct sockaddr *)&six, sa(&to), 1), EINVAL);
    FAILS(rdma_resolve_route(id, 1), EINVAL);
    FAILS(rdma_connect(id, NULL), EINVAL);
    FAILS(rdma_accept(id, NULL), EINVAL);
    FAILS(rdma_reject(id, NULL, 0), EINVAL);
    FAILS(rdma_disconnect(id), EINVAL);
    FAILS(rdma_establish(id), EINVAL);
    FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_get_request(id, &id), EINVAL);
    FAILS(rdma_create_qp(id, NULL, NULL), EINVAL);
    FAILS(rdma_join_multicast(id, sa(&to), NULL), EOPNOTSUPP);
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
    SHOULD(!id->verbs && !id->qp && !waits(here));
    gone(id);
    id = routed(htons(9));
    FAILS(rdma_connect(id, NULL), EINVAL);
    give_pair(id);
    FAILS(rdma_connect(id, &much), EINVAL);
    FAILS(rdma_resolve_addr(id, NULL, sa(&to), 1), EINVAL);
    FAILS(rdma_resolve_route(id, 1), EINVAL);
    FAILS(rdma_bind_addr(id, sa(&to)), EINVAL);
    FAILS(rdma_listen(id, 1), EINVAL);
    SHOULD(id->verbs && id->pd && id->port_num == 1 && id->qp->pd == id->pd && rdma_get_dst_port(id) == htons(9));
    SHOULD(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    SHOULD(!memcmp(id->route.addr.addr.ibaddr.sgid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16));
    SHOULD(id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq->cq_context == id && id->route.num_paths == 0);
    FAILS(rdma_create_qp(id, NULL, &(struct ibv_qp_init_attr){.qp_type = IBV_QPT_RC}), EINVAL);
    FAILS(rdma_create_srq(id, NULL, NULL), EINVAL);
    FAILS(rdma_create_srq_ex(id, &(struct ibv_srq_init_attr_ex){.comp_mask = 0}), EINVAL);
    gone(id);
}

static void addresses(void) {
    struct rdma_cm_id *first = listener(0), *second = id_at(here), *wild = id_at(here);
    struct sockaddr_in taken = loopback(rdma_get_src_port(first));
    /* A loopback address does not select a device. */
    SHOULD(taken.sin_port != 0 && !first->verbs && first->port_num == 0);
    SHOULD(rdma_get_peer_addr(first)->sa_family == AF_INET && rdma_get_dst_port(first) == 0);
    FAILS(rdma_bind_addr(second, sa(&taken)), EADDRINUSE);
    FAILS(rdma_listen(first, 0), EINVAL);
    FAILS(rdma_bind_addr(first, sa(&taken)), EINVAL);
    SHOULD(rdma_listen(wild, 0) == 0 && rdma_get_src_port(wild) != 0 && !wild->verbs);
    gone(first);
    SHOULD(rdma_bind_addr(second, sa(&taken)) == 0 && rdma_listen(second, 0) == 0);
    gone(second);
    gone(wild);
}

static void lookups(void) {
    struct rdma_addrinfo *found, hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &found), EINVAL);
    SHOULD(rdma_getaddrinfo(NULL, "7471", &hints, &found) == 0);
    SHOULD(found->ai_src_addr && !found->ai_dst_addr && found->ai_qp_type == IBV_QPT_RC && found->ai_port_space == RDMA_PS_TCP);
    rdma_freeaddrinfo(found);
    hints.ai_flags = RAI_NUMERICHOST;
    SHOULD(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found) == 0 && found->ai_dst_len == sizeof(struct sockaddr_in));
    rdma_freeaddrinfo(found);
    SHOULD(rdma_getaddrinfo("no.such.name", "7471", &hints, &found) > -100 && errno != ENOMEM);
    rdma_freeaddrinfo(NULL);
}

/* Both ends of a connection from the request to the end, and their events. */
static void whole_life(void) {
    struct rdma_cm_id *at = listener(0), *client = asking(rdma_get_src_port(at));
    struct rdma_cm_event *e = event(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *server = e->id;
    struct rdma_conn_param param = {.responder_resources = 2, .initiator_depth = RDMA_MAX_INIT_DEPTH, .private_data = "welcome",
                                    .private_data_len = 7};
    SHOULD(e->listen_id == at && server->channel == here && server->verbs && server->pd);
    SHOULD(e->param.conn.private_data_len == 3 && !memcmp(e->param.conn.private_data, "who", 3));
    SHOULD(e->param.conn.initiator_depth == 3 && e->param.conn.responder_resources == 5);
    SHOULD(rdma_get_dst_port(server) == rdma_get_src_port(client) && rdma_get_src_port(server) == rdma_get_dst_port(client));
    rdma_ack_cm_event(e);
    FAILS(rdma_accept(server, NULL), EINVAL);
    give_pair(server);
    SHOULD(rdma_accept(server, &param) == 0);
    FAILS(rdma_accept(server, &param), EINVAL);
    FAILS(rdma_reject(server, NULL, 0), EINVAL);
    e = event(here, RDMA_CM_EVENT_ESTABLISHED);
    SHOULD(e->id == server && e->param.conn.initiator_depth == 3 && e->param.conn.responder_resources == 2);
    rdma_ack_cm_event(e);
    e = event(there, RDMA_CM_EVENT_ESTABLISHED);
    SHOULD(e->id == client && e->param.conn.initiator_depth == 2 && e->param.conn.responder_resources == 3);
    SHOULD(e->param.conn.private_data_len == 7 && !memcmp(e->param.conn.private_data, "welcome", 7));
    rdma_ack_cm_event(e);
    SHOULD(client->qp->state == IBV_QPS_RTS && server->qp->state == IBV_QPS_RTS);
    SHOULD(rdma_notify(client, IBV_EVENT_COMM_EST) == 0);
    SHOULD(rdma_disconnect(client) == 0);
    SHOULD(next(there, RDMA_CM_EVENT_DISCONNECTED) == client && next(here, RDMA_CM_EVENT_DISCONNECTED) == server);
    SHOULD(rdma_disconnect(client) == 0 && rdma_disconnect(server) == 0 && !waits(here) && !waits(there));
    gone(client);
    gone(server);
    gone(at);
}

/* No listener; a listener that rejects; a listener that is destroyed. */
static void refusals(void) {
    struct rdma_cm_id *at = listener(0), *client = routed(htons(1)), *server;
    struct rdma_cm_event *e;
    struct ibv_wc wc;
    char inbox[8];
    give_pair(client);
    struct ibv_mr *mr = rdma_reg_msgs(client, inbox, sizeof inbox);
    MUST(mr && rdma_post_recv(client, NULL, inbox, sizeof inbox, mr) == 0);
    SHOULD(rdma_connect(client, NULL) == 0);
    e = event(there, RDMA_CM_EVENT_REJECTED);
    SHOULD(e->id == client && e->status == -ECONNREFUSED && e->param.conn.private_data_len == 0);
    rdma_ack_cm_event(e);
    SHOULD(client->qp->state == IBV_QPS_ERR && ibv_poll_cq(client->recv_cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
    SHOULD(rdma_dereg_mr(mr) == 0);
    FAILS(rdma_connect(client, NULL), EINVAL);
    gone(client);

    client = asking(rdma_get_src_port(at));
    server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    SHOULD(rdma_reject(server, "no", 2) == 0);
    FAILS(rdma_reject(server, "no", 2), EINVAL);
    give_pair(server);
    FAILS(rdma_accept(server, NULL), EINVAL);
    rdma_destroy_qp(server);
    rdma_destroy_qp(server);
    FAILS(rdma_connect(client, NULL), EINVAL);
    e = event(there, RDMA_CM_EVENT_REJECTED);
    SHOULD(e->status == -ECONNREFUSED && e->param.conn.private_data_len == 2 && !memcmp(e->param.conn.private_data, "no", 2));
    rdma_ack_cm_event(e);
    gone(client);
    gone(server);

    client = asking(rdma_get_src_port(at));
    while (!waits(here))
        ;
    gone(at);
    SHOULD(!waits(here) && next(there, RDMA_CM_EVENT_REJECTED) == client);
    gone(client);
}

/* A request that precedes its listener by a moment is accepted. */
static void early(void) {
    struct rdma_cm_id *at = id_at(here), *client, *server;
    struct sockaddr_in any = loopback(0);
    MUST(rdma_bind_addr(at, sa(&any)) == 0);
    client = asking(rdma_get_src_port(at));
    SHOULD(!waits(there) && rdma_listen(at, 0) == 0);
    server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    gone(server);
    SHOULD(next(there, RDMA_CM_EVENT_REJECTED) == client);
    gone(client);
    gone(at);
}

/* Requests wait up to the listener's backlog; destroying an unanswered id rejects its request. */
static void backlog(void) {
    struct rdma_cm_id *at = listener(1), *first = asking(rdma_get_src_port(at)), *second, *server;
    while (!waits(here))
        ;
    second = asking(rdma_get_src_port(at));
    SHOULD(next(there, RDMA_CM_EVENT_REJECTED) == second);
    server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    gone(server);
    SHOULD(next(there, RDMA_CM_EVENT_REJECTED) == first);
    gone(first);
    gone(second);
    gone(at);
}

/* A peer that disconnects unanswered; a queue pair that is destroyed in a connection; an id that
 * is destroyed in one. */
static void vanished(void) {
    struct rdma_cm_id *at = listener(0), *client = asking(rdma_get_src_port(at)), *server;
    server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    gone(client);
    give_pair(server);
    /* When the next request arrives, the end of the first has arrived too. */
    client = asking(rdma_get_src_port(at));
    struct rdma_cm_id *second = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    FAILS(rdma_accept(server, NULL), ECONNRESET);
    gone(server);
    gone(second);
    SHOULD(next(there, RDMA_CM_EVENT_REJECTED) == client);
    gone(client);

    client = asking(rdma_get_src_port(at));
    server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    give_pair(server);
    MUST(rdma_accept(server, NULL) == 0);
    next(here, RDMA_CM_EVENT_ESTABLISHED);
    next(there, RDMA_CM_EVENT_ESTABLISHED);
    rdma_destroy_qp(server);
    SHOULD(next(here, RDMA_CM_EVENT_DISCONNECTED) == server && next(there, RDMA_CM_EVENT_DISCONNECTED) == client);
    gone(server);
    gone(client);

    client = asking(rdma_get_src_port(at));
    server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    give_pair(server);
    MUST(rdma_accept(server, NULL) == 0);
    next(here, RDMA_CM_EVENT_ESTABLISHED);
    next(there, RDMA_CM_EVENT_ESTABLISHED);
    struct rdma_cm_id was = *client;
    SHOULD(rdma_destroy_id(client) == 0);
    SHOULD(next(here, RDMA_CM_EVENT_DISCONNECTED) == server && !waits(there));
    gone(server);
    /* The id's other objects remain, as with rdma-core. */
    SHOULD(ibv_destroy_qp(was.qp) == 0 && ibv_destroy_cq(was.send_cq) == 0 && ibv_destroy_cq(was.recv_cq) == 0);
    SHOULD(ibv_destroy_comp_channel(was.send_cq_channel) == 0 && ibv_destroy_comp_channel(was.recv_cq_channel) == 0);
    gone(at);
}

static void every_state(void) {
    struct rdma_cm_id *at = listener(0), *id = id_at(there);
    struct sockaddr_in to = loopback(rdma_get_src_port(at));
    gone(id);
    id = id_at(there);
    MUST(rdma_resolve_addr(id, NULL, sa(&to), 1000) == 0 && waits(there));
    gone(id);
    SHOULD(!waits(there));
    gone(routed(to.sin_port));
    gone(asking(to.sin_port));
    /* The request may have arrived or not; no event reports a peer that is gone. */
    gone(at);
    SHOULD(!waits(here));
}

/* Moves a queue pair of the program as rdma_init_qp_attr states: the changes are those that siw
 * returns. */
static void move(struct rdma_cm_id *id, struct ibv_qp *pair, enum ibv_qp_state to, int changes) {
    struct ibv_qp_attr attr = {.qp_state = to, .qp_access_flags = -1};
    int mask = -1;
    SHOULD(rdma_init_qp_attr(id, &attr, &mask) == 0 && mask == (changes | IBV_QP_PORT) && attr.port_num == 1);
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
    struct rdma_cm_id *at = listener(0), *client = routed(rdma_get_src_port(at)), *server;
    struct ibv_cq *cq = ibv_create_cq(client->verbs, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .cap = {.max_send_wr = 1, .max_recv_wr = 1}, .qp_type = IBV_QPT_RC};
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
        server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
        moved(server, pairs[1]);
        param.qp_num = pairs[1]->qp_num;
        SHOULD(state(pairs[1]) == IBV_QPS_RTR && rdma_accept(server, &param) == 0);
        SHOULD(next(here, RDMA_CM_EVENT_ESTABLISHED) == server && next(there, RDMA_CM_EVENT_ESTABLISHED) == client);
        moved(client, pairs[0]);
        SHOULD(!client->qp && rdma_establish(client) == 0);
        SHOULD(state(pairs[0]) == IBV_QPS_RTS && state(pairs[1]) == IBV_QPS_RTS);
        change.qp_state = IBV_QPS_ERR;
        SHOULD(ibv_modify_qp(pairs[round], &change, IBV_QP_STATE) == 0 && state(pairs[round]) == IBV_QPS_ERR);
        SHOULD(next(here, RDMA_CM_EVENT_DISCONNECTED) == server && next(there, RDMA_CM_EVENT_DISCONNECTED) == client);
        SHOULD(state(pairs[0]) == IBV_QPS_ERR && state(pairs[1]) == IBV_QPS_ERR && rdma_disconnect(client) == 0);
        FAILS(rdma_establish(client), EINVAL);
        change.qp_state = IBV_QPS_RESET;
        SHOULD(ibv_modify_qp(pairs[0], &change, IBV_QP_STATE) == 0 && ibv_modify_qp(pairs[1], &change, IBV_QP_STATE) == 0);
        SHOULD(pairs[0]->state == IBV_QPS_RESET && state(pairs[0]) == IBV_QPS_INIT && state(pairs[1]) == IBV_QPS_INIT);
        change.qp_state = IBV_QPS_SQE;
        gone(client);
        gone(server);
        client = routed(rdma_get_src_port(at));
    }
    SHOULD(ibv_destroy_qp(pairs[0]) == 0 && ibv_destroy_qp(pairs[1]) == 0 && ibv_destroy_cq(cq) == 0);
    gone(client);
    gone(at);
}

static void channels(void) {
    struct rdma_event_channel *third = rdma_create_event_channel();
    struct rdma_cm_event *e;
    struct rdma_cm_id *id = id_at(here), *alone = NULL;
    struct sockaddr_in to = loopback(htons(9));
    MUST(third && fcntl(third->fd, F_SETFL, O_NONBLOCK) == 0);
    FAILS(rdma_get_cm_event(third, &e), EAGAIN);
    MUST(rdma_resolve_addr(id, NULL, sa(&to), 1000) == 0 && waits(here));
    SHOULD(rdma_migrate_id(id, third) == 0 && id->channel == third);
    SHOULD(!waits(here) && waits(third) && next(third, RDMA_CM_EVENT_ADDR_RESOLVED) == id && !waits(third));
    SHOULD(rdma_migrate_id(id, NULL) == 0 && id->channel != third);
    FAILS(rdma_migrate_id(id, NULL), EINVAL);
    SHOULD(rdma_resolve_route(id, 1000) == 0 && id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
    give_pair(id);
    FAILS(rdma_connect(id, NULL), ECONNREFUSED);
    SHOULD(rdma_migrate_id(id, third) == 0 && !id->event);
    gone(id);
    SHOULD(rdma_create_id(NULL, &alone, third, RDMA_PS_TCP) == 0 && alone->context == third && alone->channel);
    gone(alone);
    rdma_destroy_event_channel(third);
}

/* Functions of later releases of rdma-core, which the installed headers may lack. */
static void later(void) {
    int (*write)(struct rdma_cm_id *, int, int, uint64_t) = dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
    int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *) =
        dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
    int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **) = dlsym(RTLD_DEFAULT, "rdma_query_addrinfo");
    int (*speed)(struct ibv_context *, uint32_t, uint64_t *) = dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
    enum { RESOLVED = 16, USER = 18, INTERNAL = 19, SA = 16, DNS = 32 };
    struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP}, *found;
    const uint64_t argument = 0x0123456789abcdef;
    struct rdma_cm_id *id = id_at(here);
    struct rdma_cm_event *e;
    uint64_t units = 0;
    MUST(write && resolve && query && speed);
    FAILS(write(NULL, USER, 0, 1), EINVAL);
    FAILS(write(id, RDMA_CM_EVENT_ESTABLISHED, 0, 1), EINVAL);
    FAILS(write(id, INTERNAL, 0, 1), EINVAL);
    SHOULD(!waits(here) && write(id, USER, -7, argument) == 0 && write(id, USER, 8, ~argument) == 0);
    e = event(here, USER);
    SHOULD(e->id == id && !e->listen_id && e->status == -7 && !memcmp(&e->param, &argument, sizeof argument));
    rdma_ack_cm_event(e);
    SHOULD(waits(here));
    gone(id);
    SHOULD(!waits(here));

    id = id_at(here);
    FAILS(query(NULL, &found), EINVAL);
    FAILS(query(id, NULL), EINVAL);
    FAILS(query(id, &found), ENOENT);
    FAILS(resolve(NULL, "127.0.0.1", NULL, NULL), EINVAL);
    FAILS(resolve(id, NULL, NULL, NULL), EINVAL);
    hints.ai_flags = SA | DNS;
    FAILS(resolve(id, NULL, "7471", &hints), EOPNOTSUPP);
    hints.ai_flags = SA;
    FAILS(resolve(id, NULL, "7471", &hints), EOPNOTSUPP);
    FAILS(resolve(id, "127.0.0.1", "7471", &hints), EOPNOTSUPP);
    FAILS(resolve(id, NULL, NULL, &hints), EINVAL);
    FAILS(rdma_getaddrinfo(NULL, "7471", &hints, &found), ENOENT);
    FAILS(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found), EOPNOTSUPP);
    hints.ai_flags = RAI_NUMERICHOST | DNS;
    FAILS(resolve(id, "no number", "7471", &hints), EAI_NONAME);
    SHOULD(!waits(here) && resolve(id, "127.0.0.1", "7471", &hints) == 0);
    FAILS(resolve(id, "127.0.0.1", "7471", &hints), EBUSY);
    SHOULD(next(here, RESOLVED) == id && query(id, &found) == 0);
    SHOULD(found->ai_dst_len == sizeof(struct sockaddr_in) && ((struct sockaddr_in *)found->ai_dst_addr)->sin_port == htons(7471));
    rdma_freeaddrinfo(found);
    FAILS(query(id, &found), ENOENT);
    /* This result is not fetched. */
    SHOULD(resolve(id, "127.0.0.1", "7472", &hints) == 0);
    gone(id);
    SHOULD(!waits(here) && rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
    SHOULD(resolve(id, "127.0.0.1", "7471", &hints) == 0 && id->event && (int)id->event->event == RESOLVED);
    gone(id);

    id = routed(htons(9));
    SHOULD(speed(id->verbs, 1, &units) == 0 && units > 0 && speed(id->verbs, 2, &units) == EINVAL);
    SHOULD(speed(id->verbs, 1, NULL) == EINVAL && speed(NULL, 1, &units) == EINVAL);
    gone(id);
}

/* Endpoints. */
static void ends(void) {
    struct rdma_cm_id *at = listener(0), *id;
    struct sockaddr_in taken = loopback(rdma_get_src_port(at)), nobody = loopback(htons(1));
    struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = 1, .max_recv_wr = 1}, .qp_type = IBV_QPT_RC};
    struct rdma_addrinfo want = {.ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC, .ai_dst_addr = sa(&nobody), .ai_dst_len = sizeof nobody};
    FAILS(rdma_create_ep(NULL, &want, NULL, NULL), EINVAL);
    FAILS(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
    want.ai_qp_type = IBV_QPT_UD;
    FAILS(rdma_create_ep(&id, &want, NULL, NULL), EOPNOTSUPP);
    want.ai_qp_type = IBV_QPT_RC;
    want.ai_dst_addr = NULL;
    FAILS(rdma_create_ep(&id, &want, NULL, NULL), EINVAL);
    want.ai_dst_addr = sa(&nobody);
    SHOULD(rdma_create_ep(&id, &want, NULL, &attr) == 0 && id->qp && id->verbs);
    FAILS(rdma_get_request(id, NULL), EINVAL);
    FAILS(rdma_connect(id, NULL), ECONNREFUSED);
    rdma_destroy_ep(id);
    attr.cap.max_send_wr = 1 << 30;
    FAILS(rdma_create_ep(&id, &want, NULL, &attr), EINVAL);
    want.ai_flags = RAI_PASSIVE;
    FAILS(rdma_create_ep(&id, &want, NULL, NULL), EINVAL);
    want.ai_src_addr = sa(&taken);
    want.ai_src_len = sizeof taken;
    FAILS(rdma_create_ep(&id, &want, NULL, NULL), EADDRINUSE);
    gone(at);
    SHOULD(rdma_create_ep(&id, &want, NULL, NULL) == 0 && rdma_listen(id, 1) == 0 && rdma_get_src_port(id) == taken.sin_port);
    rdma_destroy_ep(id);
    rdma_destroy_ep(NULL);
}

/* Acknowledges once the first thread waits for that. */
static void *acknowledges(void *e) {
    sleeps(getpid());
    return (void *)(long)rdma_ack_cm_event(e);
}

/* Destroying or migrating an id waits until all its fetched events are acknowledged. */
static void unacknowledged(void) {
    struct rdma_cm_id *id = id_at(here);
    struct sockaddr_in to = loopback(htons(9));
    pthread_t thread;
    void *result = id;
    MUST(rdma_resolve_addr(id, NULL, sa(&to), 1000) == 0);
    MUST(pthread_create(&thread, NULL, acknowledges, event(here, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
    SHOULD(rdma_migrate_id(id, there) == 0 && pthread_join(thread, &result) == 0 && !result);
    MUST(rdma_resolve_route(id, 1000) == 0);
    MUST(pthread_create(&thread, NULL, acknowledges, event(there, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
    gone(id);
    SHOULD(pthread_join(thread, &result) == 0 && !result);
}

static void *blocked(void *number) {
    struct rdma_cm_event *e;
    __atomic_store_n((int *)number, thread_number(), __ATOMIC_RELEASE);
    rdma_get_cm_event(here, &e);
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
    SHOULD(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

/* Without a descriptor left, calls that need one fail, and nothing else breaks. */
static void exhausted(void) {
    struct rdma_cm_id *at = listener(0), *client = routed(rdma_get_src_port(at)), *id;
    struct rlimit before, none;
    give_pair(client);
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
    id = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    SHOULD(rdma_reject(id, NULL, 0) == 0 && next(there, RDMA_CM_EVENT_REJECTED) == client);
    gone(id);
    gone(client);

    /* One descriptor for the client and none for the server, which sees the request once it has
     * one. */
    client = routed(rdma_get_src_port(at));
    give_pair(client);
    none.rlim_cur = dup(0) + 1;
    close(none.rlim_cur - 1);
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    SHOULD(rdma_connect(client, NULL) == 0 && !waits(here));
    FAILS(dup(0), EMFILE);
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    id = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    gone(id);
    SHOULD(next(there, RDMA_CM_EVENT_REJECTED) == client);
    gone(client);
    gone(at);
}

/* A child must not use its parent's objects, and may create its own. */
static void forked(void) {
    struct rdma_cm_id *at = listener(0), *client = asking(rdma_get_src_port(at)), *server;
    int status = -1;
    server = next(here, RDMA_CM_EVENT_CONNECT_REQUEST);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rdma_cm_event *e;
        wrong = 0;
        FAILS(rdma_accept(server, NULL), EINVAL);
        FAILS(rdma_get_cm_event(here, &e), EINVAL);
        FAILS(rdma_create_id(here, &server, NULL, RDMA_PS_TCP), EINVAL);
        gone(client);
        gone(server);
        gone(at);
        rdma_destroy_event_channel(here);
        rdma_destroy_event_channel(there);
        here = rdma_create_event_channel();
        there = rdma_create_event_channel();
        MUST(here && there);
        whole_life();
        fflush(stdout);
        _exit(wrong);
    }
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    SHOULD(status == 0);
    give_pair(server);
    SHOULD(rdma_accept(server, NULL) == 0);
    SHOULD(next(here, RDMA_CM_EVENT_ESTABLISHED) == server && next(there, RDMA_CM_EVENT_ESTABLISHED) == client);
    gone(client);
    SHOULD(next(here, RDMA_CM_EVENT_DISCONNECTED) == server);
    gone(server);
    gone(at);
}

int main(void) {
    int sockets = descriptors("socket:");
    here = rdma_create_event_channel();
    there = rdma_create_event_channel();
    MUST(here && there);
    /* Create what the process creates once and keeps. */
    whole_life();
    no_more_sockets_than(sockets);
    int before = descriptors("");
    arguments();
    addresses();
    lookups();
    whole_life();
    refusals();
    early();
    backlog();
    vanished();
    every_state();
    own_pairs();
    channels();
    later();
    ends();
    unacknowledged();
    cancelled();
    exhausted();
    forked();
    no_more_sockets_than(sockets);
    SHOULD(descriptors("") <= before);
    rdma_destroy_event_channel(here);
    rdma_destroy_event_channel(there);
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
