/* The one device of `sprat exec --device`: its addresses, ports and routes; two processes that
 * connect over shared memory; forks. Prints whatever fails. SPRAT_DEVICE names the device at
 * 10.79.0.1, and OTHER_DEVICE the one at 10.79.0.2 on the same wire. */
#include "ids.h"

static struct sockaddr_in at(const char *ip, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    MUST(inet_pton(AF_INET, ip, &at.sin_addr) == 1);
    return at;
}

/* The number of RDMA devices, or the negated errno if there is no list of them. */
static int listed(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (!list)
        return -errno;
    ibv_free_device_list(list);
    return count;
}

static void the_device(void) {
    int count;
    union ibv_gid gid;
    struct ibv_port_attr port;
    struct ibv_device **list = ibv_get_device_list(&count);
    MUST(list && count == 1);
    SHOULD(!strcmp(ibv_get_device_name(list[0]), "iw_sprat0"));
    struct ibv_context *context = ibv_open_device(list[0]);
    MUST(context);
    SHOULD(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
    SHOULD(port.gid_tbl_len >= 1 && port.active_mtu == IBV_MTU_4096);
    SHOULD(ibv_query_gid(context, 1, 0, &gid) == 0 &&
           !memcmp(gid.raw + 10, "\xff\xff\x0a\x4f\x00\x01", 6));
    SHOULD(ibv_close_device(context) == 0);
    ibv_free_device_list(list);
}

static int bound(struct rdma_cm_id **id, const char *ip, int port) {
    struct sockaddr_in own = at(ip, port);
    *id = new_id(server_events);
    return rdma_bind_addr(*id, as_sockaddr(&own));
}

static void addresses(void) {
    struct rdma_cm_id *a, *b, *c;
    FAILS(bound(&a, "127.0.0.1", 0), EADDRNOTAVAIL);
    destroy(a);
    FAILS(bound(&a, "10.79.0.9", 0), EADDRNOTAVAIL);
    destroy(a);
    SHOULD(bound(&a, "10.79.0.1", 0) == 0 && bound(&b, "0.0.0.0", 0) == 0);
    SHOULD(a->verbs && !b->verbs && rdma_get_src_port(a) && rdma_get_src_port(b));
    SHOULD(rdma_get_src_port(a) != rdma_get_src_port(b));
    SHOULD(rdma_listen(b, 1) == 0);
    FAILS(bound(&c, "10.79.0.1", ntohs(rdma_get_src_port(b))), EADDRINUSE);
    destroy(a);
    destroy(b);
    destroy(c);
}

static void routes(void) {
    const char *nowhere[] = {"127.0.0.1", "10.79.0.1", "198.51.100.1", "224.0.0.1"};
    for (int i = 0; i < 4; i++) {
        struct rdma_cm_id *id = new_id(client_events);
        struct sockaddr_in to = at(nowhere[i], 7);
        SHOULD(rdma_resolve_addr(id, NULL, as_sockaddr(&to), 100) == 0);
        struct rdma_cm_event *e = event(client_events, RDMA_CM_EVENT_ADDR_ERROR);
        SHOULD(e->status == -ENETUNREACH);
        rdma_ack_cm_event(e);
        destroy(id);
    }
    struct rdma_cm_id *id = new_id(client_events);
    struct sockaddr_in to = at("10.79.0.2", 7);
    SHOULD(rdma_resolve_addr(id, NULL, as_sockaddr(&to), 100) == 0);
    SHOULD(next(client_events, RDMA_CM_EVENT_ADDR_RESOLVED) == id && id->verbs);
    SHOULD(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr ==
           at("10.79.0.1", 0).sin_addr.s_addr);
    destroy(id);
}

static int status_of(pid_t child) {
    int status = -1;
    MUST(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Connects to the parent's listener, receives one message there and disconnects. */
static int client(int port) {
    static char bytes[8];
    struct rdma_conn_param param = {0};
    server_events = client_events = rdma_create_event_channel();
    MUST(client_events);
    struct rdma_cm_id *id = new_id(client_events);
    struct sockaddr_in to = at("10.79.0.1", port);
    MUST(rdma_resolve_addr(id, NULL, as_sockaddr(&to), 1000) == 0);
    next(client_events, RDMA_CM_EVENT_ADDR_RESOLVED);
    MUST(rdma_resolve_route(id, 1000) == 0);
    next(client_events, RDMA_CM_EVENT_ROUTE_RESOLVED);
    create_pair(id);
    struct ibv_mr *mr = rdma_reg_msgs(id, bytes, sizeof bytes);
    MUST(mr && rdma_post_recv(id, NULL, bytes, sizeof bytes, mr) == 0);
    MUST(rdma_connect(id, &param) == 0);
    next(client_events, RDMA_CM_EVENT_ESTABLISHED);
    struct ibv_wc wc;
    /* By the completion channel. */
    SHOULD(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    SHOULD(!strcmp(bytes, "sprats"));
    SHOULD(rdma_disconnect(id) == 0);
    rdma_dereg_mr(mr);
    destroy(id);
    return wrong;
}

/* The queue pair's event, which comes when its connection has ended: it leaves shared receives. */
static void async(struct rdma_cm_id *id) {
    struct ibv_async_event e;
    SHOULD(ibv_get_async_event(id->verbs, &e) == 0 &&
           e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && e.element.qp == id->qp);
    ibv_ack_async_event(&e);
}

static void connections(const char *program) {
    static char bytes[8] = "sprats";
    struct rdma_conn_param param = {0};
    struct rdma_cm_id *own;
    char port[8];
    SHOULD(bound(&own, "0.0.0.0", 0) == 0 && rdma_listen(own, 1) == 0);
    snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(own)));
    pid_t child = fork();
    if (child == 0) {
        /* Another program, on the other device. */
        setenv("SPRAT_DEVICE", getenv("OTHER_DEVICE"), 1);
        execl(program, program, port, NULL);
        _exit(2);
    }
    struct rdma_cm_id *id = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(id->pd, &init);
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 4, .max_send_sge = 1, .max_recv_wr = 4},
        .srq = srq,
        .qp_type = IBV_QPT_RC};
    MUST(srq && rdma_create_qp(id, NULL, &attr) == 0);
    SHOULD(id->verbs && rdma_accept(id, &param) == 0);
    SHOULD(next(server_events, RDMA_CM_EVENT_ESTABLISHED) == id);
    struct ibv_mr *mr = rdma_reg_msgs(id, bytes, sizeof bytes);
    struct ibv_wc wc;
    MUST(mr && rdma_post_send(id, NULL, bytes, sizeof bytes, mr, IBV_SEND_SIGNALED) == 0);
    SHOULD(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    SHOULD(next(server_events, RDMA_CM_EVENT_DISCONNECTED) == id);
    async(id);
    rdma_dereg_mr(mr);
    destroy(id);
    SHOULD(ibv_destroy_srq(srq) == 0);
    destroy(own);
    SHOULD(status_of(child) == 0);
}

/* A child of a process with the device cannot open it, and the parent goes on with it. */
static void forks(void) {
    pid_t child = fork();
    if (child == 0) {
        SHOULD(listed() == -EBUSY);
        fflush(stdout);
        _exit(wrong);
    }
    SHOULD(status_of(child) == 0 && listed() == 1);
}

int main(int count, char **arguments) {
    if (count > 1)
        return client(atoi(arguments[1]));
    server_events = rdma_create_event_channel();
    client_events = rdma_create_event_channel();
    MUST(server_events && client_events);
    the_device();
    addresses();
    routes();
    connections(arguments[0]);
    forks();
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
