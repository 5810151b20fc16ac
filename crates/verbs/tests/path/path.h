/* Two queue pairs of one process that rdma_cm connects, shared by the tests of the data path. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "../support/should.h"

enum { ROOM = 1 << 20, DEPTH = 64 };

struct side {
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
};

/* The parameters of a side. */
struct options {
    int shared;
    int extended;
    int signal_all;
};

static struct rdma_cm_event *expect(struct rdma_event_channel *events,
                                    enum rdma_cm_event_type type) {
    struct rdma_cm_event *event;
    MUST(rdma_get_cm_event(events, &event) == 0);
    if (event->event != type)
        printf("%s instead of %s, status %d\n", rdma_event_str(event->event), rdma_event_str(type),
               event->status);
    MUST(event->event == type);
    return event;
}

static void create_objects(struct side *side, struct rdma_cm_id *id, struct options options) {
    side->id = id;
    MUST((side->pd = ibv_alloc_pd(id->verbs)) != NULL);
    MUST((side->channel = ibv_create_comp_channel(id->verbs)) != NULL);
    if (options.extended) {
        struct ibv_cq_init_attr_ex attr = {
            .cqe = 4 * DEPTH,
            .cq_context = side,
            .channel = side->channel,
            .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
        MUST((side->cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(id->verbs, &attr))) != NULL);
    } else {
        MUST((side->cq = ibv_create_cq(id->verbs, 4 * DEPTH, side, side->channel, 0)) != NULL);
    }
    side->srq = NULL;
    if (options.shared) {
        struct ibv_srq_init_attr attr = {.attr = {.max_wr = DEPTH, .max_sge = 2}};
        MUST((side->srq = ibv_create_srq(side->pd, &attr)) != NULL);
    }
    struct ibv_qp_cap cap = {.max_send_wr = DEPTH,
                             .max_recv_wr = DEPTH,
                             .max_send_sge = 2,
                             .max_recv_sge = 2,
                             .max_inline_data = 64};
    if (options.extended) {
        struct ibv_qp_init_attr_ex attr = {
            .qp_context = side,
            .send_cq = side->cq,
            .recv_cq = side->cq,
            .srq = side->srq,
            .cap = cap,
            .qp_type = IBV_QPT_RC,
            .sq_sig_all = options.signal_all,
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            .pd = side->pd,
            .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                              IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ |
                              IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                              IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV |
                              IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW};
        MUST((side->qp = ibv_create_qp_ex(id->verbs, &attr)) != NULL);
    } else {
        struct ibv_qp_init_attr attr = {.qp_context = side,
                                        .send_cq = side->cq,
                                        .recv_cq = side->cq,
                                        .srq = side->srq,
                                        .cap = cap,
                                        .qp_type = IBV_QPT_RC,
                                        .sq_sig_all = options.signal_all};
        MUST((side->qp = ibv_create_qp(side->pd, &attr)) != NULL);
        SHOULD(attr.cap.max_inline_data >= 64 && attr.cap.max_send_wr >= DEPTH);
    }
    MUST((side->memory = aligned_alloc(4096, ROOM)) != NULL);
    memset(side->memory, 0, ROOM);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
    MUST((side->mr = ibv_reg_mr(side->pd, side->memory, ROOM, access)) != NULL);
}

/* Connects sides[0] to sides[1]. */
static void connect_sides(struct side sides[2], struct options options) {
    struct rdma_event_channel *events[2] = {rdma_create_event_channel(),
                                            rdma_create_event_channel()};
    struct rdma_cm_id *listener, *id;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct rdma_cm_event *event;
    MUST(events[0] != NULL && events[1] != NULL);
    MUST(rdma_create_id(events[1], &listener, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0);
    MUST(rdma_listen(listener, 4) == 0);
    at.sin_port = rdma_get_src_port(listener);
    MUST(rdma_create_id(events[0], &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000) == 0);
    rdma_ack_cm_event(expect(events[0], RDMA_CM_EVENT_ADDR_RESOLVED));
    MUST(rdma_resolve_route(id, 2000) == 0);
    rdma_ack_cm_event(expect(events[0], RDMA_CM_EVENT_ROUTE_RESOLVED));
    create_objects(&sides[0], id, options);
    struct rdma_conn_param param = {
        .responder_resources = 16, .initiator_depth = 16, .qp_num = sides[0].qp->qp_num};
    /* The state in which rdma_create_qp leaves a queue pair. */
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    MUST(ibv_modify_qp(sides[0].qp, &init, IBV_QP_STATE | IBV_QP_PORT) == 0);
    MUST(rdma_connect(id, &param) == 0);
    event = expect(events[1], RDMA_CM_EVENT_CONNECT_REQUEST);
    create_objects(&sides[1], event->id, options);
    MUST(ibv_modify_qp(sides[1].qp, &init, IBV_QP_STATE | IBV_QP_PORT) == 0);
    rdma_ack_cm_event(event);
    param.qp_num = sides[1].qp->qp_num;
    MUST(rdma_accept(sides[1].id, &param) == 0);
    rdma_ack_cm_event(expect(events[0], RDMA_CM_EVENT_ESTABLISHED));
    rdma_ack_cm_event(expect(events[1], RDMA_CM_EVENT_ESTABLISHED));
    MUST(rdma_destroy_id(listener) == 0);
}

/* Ends the connection and destroys all objects. */
static void finish(struct side sides[2]) {
    struct rdma_event_channel *events[2] = {sides[0].id->channel, sides[1].id->channel};
    for (int i = 0; i < 2; i++) {
        struct side *side = &sides[i];
        SHOULD(ibv_destroy_qp(side->qp) == 0);
        SHOULD(ibv_destroy_cq(side->cq) == 0);
        SHOULD(side->srq == NULL || ibv_destroy_srq(side->srq) == 0);
        SHOULD(ibv_dereg_mr(side->mr) == 0);
        SHOULD(ibv_destroy_comp_channel(side->channel) == 0);
        SHOULD(ibv_dealloc_pd(side->pd) == 0);
        SHOULD(rdma_destroy_id(side->id) == 0);
        free(side->memory);
    }
    rdma_destroy_event_channel(events[0]);
    rdma_destroy_event_channel(events[1]);
}

static struct ibv_sge piece(struct side *side, size_t at, uint32_t length) {
    return (struct ibv_sge){
        .addr = (uintptr_t)side->memory + at, .length = length, .lkey = side->mr->lkey};
}

static int receive(struct side *side, uint64_t id, size_t at, uint32_t length) {
    struct ibv_sge sge = piece(side, at, length);
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return side->srq ? ibv_post_srq_recv(side->srq, &wr, &bad) : ibv_post_recv(side->qp, &wr, &bad);
}

/* The next completion, while the other side makes progress; it arrives within ten seconds or
 * never. */
static struct ibv_wc next_completion(struct side *side) {
    struct ibv_wc wc;
    struct timespec start, now;
    int count;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        MUST((count = ibv_poll_cq(side->cq, 1, &wc)) >= 0);
        clock_gettime(CLOCK_MONOTONIC, &now);
        MUST(now.tv_sec - start.tv_sec < 10);
    } while (count == 0);
    return wc;
}

static struct ibv_wc post_and_wait(struct side *side, struct ibv_send_wr wr) {
    struct ibv_send_wr *bad;
    int error = ibv_post_send(side->qp, &wr, &bad);
    if (error)
        printf("opcode %d: errno %d\n", wr.opcode, error);
    MUST(error == 0);
    return next_completion(side);
}
