/* Memory and two connected queue pairs of this process, for the programs of this directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "../support/should.h"

#define PAGE 4096UL
#define LENGTH (64 * PAGE)
#define ALL \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)

/* Pages at an address that no allocator uses, so that they stay unmapped once they are. */
static char *pages(int rights) {
    static char *next_status = (char *)0x200000000000;
    char *at =
        mmap(next_status, LENGTH, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MUST(at != MAP_FAILED);
    next_status += 16 * LENGTH;
    return at;
}

static struct ibv_context *device(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    for (int i = 0; list[i]; i++)
        if (strcmp(ibv_get_device_name(list[i]), "iw_lo") == 0)
            context = ibv_open_device(list[i]);
    MUST(context != NULL);
    ibv_free_device_list(list);
    return context;
}

/* One of two connected queue pairs of this process. */
struct side {
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    char *at;
};

static struct rdma_event_channel *client_events, *server_events;

static struct rdma_cm_id *expect_event(struct rdma_event_channel *channel,
                                   enum rdma_cm_event_type expected) {
    struct rdma_cm_event *event;
    MUST(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != expected) {
        printf("%s and not %s (%d)\n", rdma_event_str(event->event), rdma_event_str(expected),
               event->status);
        exit(2);
    }
    struct rdma_cm_id *id = event->id;
    rdma_ack_cm_event(event);
    return id;
}

static void create_objects(struct side *side, struct rdma_cm_id *id) {
    side->id = id;
    MUST((side->pd = ibv_alloc_pd(id->verbs)) != NULL);
    MUST((side->cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0)) != NULL);
    struct ibv_qp_init_attr init = {
        .send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC};
    init.cap = (struct ibv_qp_cap){
        .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2};
    MUST(rdma_create_qp(id, side->pd, &init) == 0);
    side->at = pages(PROT_READ | PROT_WRITE);
    MUST((side->mr = ibv_reg_mr(side->pd, side->at, LENGTH, ALL)) != NULL);
}

static void post(struct side *side, struct side *peer, enum ibv_wr_opcode op, uint64_t offset,
                 uint32_t length) {
    struct ibv_sge sge = {(uintptr_t)side->at + offset, length, side->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = op,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = op,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)peer->at + offset;
        wr.wr.atomic.rkey = peer->mr->rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)peer->at + offset;
        wr.wr.rdma.rkey = peer->mr->rkey;
    }
    MUST(ibv_post_send(side->id->qp, &wr, &bad) == 0);
}

static void receive(struct side *side, uint32_t length) {
    struct ibv_sge sge = {(uintptr_t)side->at, length, side->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 99, .sg_list = &sge, .num_sge = 1}, *bad;
    MUST(ibv_post_recv(side->id->qp, &wr, &bad) == 0);
}

/* The next completion, or -1 after a timeout. */
static int next_status(struct side *side) {
    struct ibv_wc wc;
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        int got = ibv_poll_cq(side->cq, 1, &wc);
        MUST(got >= 0);
        if (got)
            return wc.status;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < 20);
    return -1;
}

static void connect_both(struct side *a, struct side *b) {
    if (!client_events)
        MUST((client_events = rdma_create_event_channel()) &&
             (server_events = rdma_create_event_channel()));
    struct rdma_cm_id *listener, *id;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(rdma_create_id(server_events, &listener, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 &&
         rdma_listen(listener, 4) == 0);
    address.sin_port = rdma_get_src_port(listener);
    MUST(rdma_create_id(client_events, &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000) == 0);
    expect_event(client_events, RDMA_CM_EVENT_ADDR_RESOLVED);
    MUST(rdma_resolve_route(id, 5000) == 0);
    expect_event(client_events, RDMA_CM_EVENT_ROUTE_RESOLVED);
    create_objects(a, id);
    struct rdma_conn_param param = {
        .responder_resources = 8, .initiator_depth = 8, .retry_count = 7};
    MUST(rdma_connect(id, &param) == 0);
    create_objects(b, expect_event(server_events, RDMA_CM_EVENT_CONNECT_REQUEST));
    receive(b, 1);
    MUST(rdma_accept(b->id, &param) == 0);
    expect_event(client_events, RDMA_CM_EVENT_ESTABLISHED);
    expect_event(server_events, RDMA_CM_EVENT_ESTABLISHED);
    MUST(rdma_destroy_id(listener) == 0);
    /* The accepting side may not send first. */
    post(a, b, IBV_WR_SEND, 0, 1);
    MUST(next_status(a) == IBV_WC_SUCCESS && next_status(b) == IBV_WC_SUCCESS);
}

static void destroy(struct side *side) {
    rdma_destroy_qp(side->id);
    SHOULD(ibv_dereg_mr(side->mr) == 0);
    SHOULD(ibv_destroy_cq(side->cq) == 0);
    SHOULD(ibv_dealloc_pd(side->pd) == 0);
    SHOULD(rdma_destroy_id(side->id) == 0);
    munmap(side->at, LENGTH);
}

static void disconnect_both(struct side *a, struct side *b) {
    rdma_disconnect(a->id);
    expect_event(client_events, RDMA_CM_EVENT_DISCONNECTED);
    expect_event(server_events, RDMA_CM_EVENT_DISCONNECTED);
    destroy(a);
    destroy(b);
}
