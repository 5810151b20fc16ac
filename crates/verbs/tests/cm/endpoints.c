/* Name resolution and endpoints of rdma_cm; prints whatever fails. */
#include "ids.h"

static void lookups(void) {
    struct rdma_addrinfo *found, hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &found), EINVAL);
    SHOULD(rdma_getaddrinfo(NULL, "7471", &hints, &found) == 0);
    SHOULD(found->ai_src_addr && !found->ai_dst_addr && found->ai_qp_type == IBV_QPT_RC &&
           found->ai_port_space == RDMA_PS_TCP);
    rdma_freeaddrinfo(found);
    hints.ai_flags = RAI_NUMERICHOST;
    SHOULD(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found) == 0 &&
           found->ai_dst_len == sizeof(struct sockaddr_in));
    rdma_freeaddrinfo(found);
    SHOULD(rdma_getaddrinfo("no.such.name", "7471", &hints, &found) > -100 && errno != ENOMEM);
    rdma_freeaddrinfo(NULL);
}

/* Functions of later releases of rdma-core, which the installed headers may lack. */
static void later(void) {
    int (*write)(struct rdma_cm_id *, int, int, uint64_t) =
        dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
    int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *) =
        dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
    int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **) =
        dlsym(RTLD_DEFAULT, "rdma_query_addrinfo");
    int (*speed)(struct ibv_context *, uint32_t, uint64_t *) =
        dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
    enum { RESOLVED = 16, USER = 18, INTERNAL = 19, SA = 16, DNS = 32 };
    struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP},
                         *found;
    const uint64_t argument = 0x0123456789abcdef;
    struct rdma_cm_id *id = new_id(server_events);
    struct rdma_cm_event *e;
    uint64_t units = 0;
    MUST(write && resolve && query && speed);
    FAILS(write(NULL, USER, 0, 1), EINVAL);
    FAILS(write(id, RDMA_CM_EVENT_ESTABLISHED, 0, 1), EINVAL);
    FAILS(write(id, INTERNAL, 0, 1), EINVAL);
    SHOULD(!has_event(server_events) && write(id, USER, -7, argument) == 0 &&
           write(id, USER, 8, ~argument) == 0);
    e = event(server_events, USER);
    SHOULD(e->id == id && !e->listen_id && e->status == -7 &&
           !memcmp(&e->param, &argument, sizeof argument));
    rdma_ack_cm_event(e);
    SHOULD(has_event(server_events));
    destroy(id);
    SHOULD(!has_event(server_events));

    id = new_id(server_events);
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
    SHOULD(!has_event(server_events) && resolve(id, "127.0.0.1", "7471", &hints) == 0);
    FAILS(resolve(id, "127.0.0.1", "7471", &hints), EBUSY);
    SHOULD(next(server_events, RESOLVED) == id && query(id, &found) == 0);
    SHOULD(found->ai_dst_len == sizeof(struct sockaddr_in) &&
           ((struct sockaddr_in *)found->ai_dst_addr)->sin_port == htons(7471));
    rdma_freeaddrinfo(found);
    FAILS(query(id, &found), ENOENT);
    /* This result is not fetched. */
    SHOULD(resolve(id, "127.0.0.1", "7472", &hints) == 0);
    destroy(id);
    SHOULD(!has_event(server_events) && rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
    SHOULD(resolve(id, "127.0.0.1", "7471", &hints) == 0 && id->event &&
           (int)id->event->event == RESOLVED);
    destroy(id);

    id = resolved_id(htons(9));
    SHOULD(speed(id->verbs, 1, &units) == 0 && units > 0 && speed(id->verbs, 2, &units) == EINVAL);
    SHOULD(speed(id->verbs, 1, NULL) == EINVAL && speed(NULL, 1, &units) == EINVAL);
    destroy(id);
}

/* Endpoints. */
static void ends(void) {
    struct rdma_cm_id *at = listener(0), *id;
    struct sockaddr_in taken = loopback(rdma_get_src_port(at)), nobody = loopback(htons(1));
    struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = 1, .max_recv_wr = 1},
                                    .qp_type = IBV_QPT_RC};
    struct rdma_addrinfo want = {.ai_port_space = RDMA_PS_TCP,
                                 .ai_qp_type = IBV_QPT_RC,
                                 .ai_dst_addr = as_sockaddr(&nobody),
                                 .ai_dst_len = sizeof nobody};
    FAILS(rdma_create_ep(NULL, &want, NULL, NULL), EINVAL);
    FAILS(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
    want.ai_qp_type = IBV_QPT_UD;
    FAILS(rdma_create_ep(&id, &want, NULL, NULL), EOPNOTSUPP);
    want.ai_qp_type = IBV_QPT_RC;
    want.ai_dst_addr = NULL;
    FAILS(rdma_create_ep(&id, &want, NULL, NULL), EINVAL);
    want.ai_dst_addr = as_sockaddr(&nobody);
    SHOULD(rdma_create_ep(&id, &want, NULL, &attr) == 0 && id->qp && id->verbs);
    FAILS(rdma_get_request(id, NULL), EINVAL);
    FAILS(rdma_connect(id, NULL), ECONNREFUSED);
    rdma_destroy_ep(id);
    attr.cap.max_send_wr = 1 << 30;
    FAILS(rdma_create_ep(&id, &want, NULL, &attr), EINVAL);
    want.ai_flags = RAI_PASSIVE;
    FAILS(rdma_create_ep(&id, &want, NULL, NULL), EINVAL);
    want.ai_src_addr = as_sockaddr(&taken);
    want.ai_src_len = sizeof taken;
    FAILS(rdma_create_ep(&id, &want, NULL, NULL), EADDRINUSE);
    destroy(at);
    SHOULD(rdma_create_ep(&id, &want, NULL, NULL) == 0 && rdma_listen(id, 1) == 0 &&
           rdma_get_src_port(id) == taken.sin_port);
    rdma_destroy_ep(id);
    rdma_destroy_ep(NULL);
}

int main(void) {
    server_events = rdma_create_event_channel();
    client_events = rdma_create_event_channel();
    MUST(server_events && client_events);
    lookups();
    later();
    ends();
    rdma_destroy_event_channel(server_events);
    rdma_destroy_event_channel(client_events);
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
