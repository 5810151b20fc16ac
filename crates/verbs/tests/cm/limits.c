/* Requests the limits that the device reports, and one more of each; prints whatever fails. */
#include <errno.h>
#include <string.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "../support/should.h"

static struct ibv_context *device(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    for (int i = 0; list && list[i]; i++)
        if (strcmp(ibv_get_device_name(list[i]), "iw_lo") == 0)
            context = ibv_open_device(list[i]);
    MUST(context != NULL);
    ibv_free_device_list(list);
    return context;
}

/* Creates objects up to a limit; the next one fails with this errno. */
#define MANY(type, most, make, unmake, number) \
    do { \
        type **all = calloc((most), sizeof *all); \
        int made = 0; \
        while (made < (most) && (all[made] = (make)) != NULL) \
            made++; \
        SHOULD(made == (most)); \
        NONE(make, number); \
        while (made > 0) \
            MUST(unmake(all[--made]) == 0); \
        free(all); \
    } while (0)

static void queues(struct ibv_context *context, const struct ibv_device_attr *most) {
    struct ibv_cq *cq = ibv_create_cq(context, most->max_cqe, NULL, NULL, 0);
    SHOULD(cq != NULL && cq->cqe == most->max_cqe && ibv_resize_cq(cq, most->max_cqe) == 0);
    /* The device reports that events cannot be moderated. */
    struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {1, 1}};
    SHOULD(ibv_modify_cq(cq, &moderate) == EOPNOTSUPP);
    SHOULD(ibv_resize_cq(cq, most->max_cqe + 1) == EINVAL && ibv_resize_cq(cq, 0) == EINVAL);
    SHOULD(ibv_destroy_cq(cq) == 0);
    NONE(ibv_create_cq(context, most->max_cqe + 1, NULL, NULL, 0), EINVAL);
    NONE(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
    NONE(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
    NONE(ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors), EINVAL);
    MANY(struct ibv_cq, most->max_cq, ibv_create_cq(context, 1, NULL, NULL, 0), ibv_destroy_cq,
         ENOMEM);
}

static void shared(struct ibv_pd *pd, const struct ibv_device_attr *most) {
    struct ibv_srq_init_attr init = {
        .attr = {.max_wr = most->max_srq_wr, .max_sge = most->max_srq_sge}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    struct ibv_srq_attr attr;
    SHOULD(srq != NULL && ibv_query_srq(srq, &attr) == 0);
    SHOULD(attr.max_wr == (uint32_t)most->max_srq_wr &&
           attr.max_sge == (uint32_t)most->max_srq_sge && attr.srq_limit == 0);
    attr.srq_limit = most->max_srq_wr;
    SHOULD(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
    attr.srq_limit = most->max_srq_wr + 1;
    SHOULD(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
    SHOULD(ibv_modify_srq(srq, &attr, 1 << 5) == EINVAL);
    /* The device does not report this capability. */
    SHOULD(!(most->device_cap_flags & IBV_DEVICE_SRQ_RESIZE) &&
           ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
    SHOULD(ibv_destroy_srq(srq) == 0);
    init.attr.max_wr++;
    NONE(ibv_create_srq(pd, &init), EINVAL);
    init.attr.max_wr = 0;
    NONE(ibv_create_srq(pd, &init), EINVAL);
    init.attr = (struct ibv_srq_attr){.max_wr = 1, .max_sge = most->max_srq_sge + 1};
    NONE(ibv_create_srq(pd, &init), EINVAL);
    init.attr.max_sge = 1;
    MANY(struct ibv_srq, most->max_srq, ibv_create_srq(pd, &init), ibv_destroy_srq, ENOMEM);
}

static void pairs(struct ibv_context *context, struct ibv_pd *pd,
                  const struct ibv_device_attr *most) {
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC},
                            plain = init;
    MUST(cq != NULL);
    init.cap =
        (struct ibv_qp_cap){most->max_qp_wr, most->max_qp_wr, most->max_sge, most->max_sge, 0};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    const struct ibv_qp_cap cap = init.cap;
    SHOULD(qp != NULL && ibv_destroy_qp(qp) == 0);
    SHOULD(cap.max_send_wr >= (uint32_t)most->max_qp_wr &&
           cap.max_send_sge == (uint32_t)most->max_sge);
    for (int which = 0; which < 5; which++) {
        uint32_t *caps[5] = {&init.cap.max_send_wr, &init.cap.max_recv_wr, &init.cap.max_send_sge,
                             &init.cap.max_recv_sge, &init.cap.max_inline_data};
        init.cap = cap;
        ++*caps[which];
        NONE(ibv_create_qp(pd, &init), EINVAL);
    }
    MANY(struct ibv_qp, most->max_qp, ibv_create_qp(pd, &plain), ibv_destroy_qp, ENOMEM);
    SHOULD(ibv_destroy_cq(cq) == 0);
}

/* The depths of Reads that rdma_connect accepts. */
static void depths(const struct ibv_device_attr *most) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct sockaddr_in nobody = {
        .sin_family = AF_INET, .sin_port = htons(1), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1},
                                    .qp_type = IBV_QPT_RC};
    struct rdma_conn_param param = {.responder_resources = most->max_qp_rd_atom + 1};
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;
    MUST(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&nobody, 1) == 0 &&
         rdma_get_cm_event(channel, &event) == 0);
    MUST(rdma_ack_cm_event(event) == 0 && rdma_resolve_route(id, 1) == 0 &&
         rdma_get_cm_event(channel, &event) == 0);
    MUST(rdma_ack_cm_event(event) == 0 && rdma_create_qp(id, NULL, &init) == 0);
    FAILS(rdma_connect(id, &param), EINVAL);
    param = (struct rdma_conn_param){.initiator_depth = most->max_qp_init_rd_atom + 1};
    FAILS(rdma_connect(id, &param), EINVAL);
    param = (struct rdma_conn_param){.responder_resources = most->max_qp_rd_atom,
                                     .initiator_depth = most->max_qp_init_rd_atom};
    SHOULD(rdma_connect(id, &param) == 0);
    rdma_destroy_qp(id);
    SHOULD(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
}

int main(void) {
    struct ibv_context *context = device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_device_attr most;
    MUST(pd && ibv_query_device(context, &most) == 0);
    SHOULD(most.max_mw == most.max_mr && most.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
    struct ibv_device_attr_ex more;
    SHOULD(ibv_query_device_ex(context, NULL, &more) == 0 && more.cq_mod_caps.max_cq_count == 0);
    queues(context, &most);
    shared(pd, &most);
    pairs(context, pd, &most);
    depths(&most);
    SHOULD(ibv_dealloc_pd(pd) == 0);
    /* rdma_cm keeps one domain of its own. */
    MANY(struct ibv_pd, most.max_pd - 1, ibv_alloc_pd(context), ibv_dealloc_pd, ENOMEM);
    SHOULD(ibv_close_device(context) == 0);
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
