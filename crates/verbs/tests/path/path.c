/* The data path as C programs use it: posting, misuse, states, and progress without calls. */
#include "path.h"

static void every_operation(void) {
    struct side s[2];
    struct ibv_wc wc;
    connect_sides(s, (struct options){0});
    struct side *a = &s[0], *b = &s[1];
    uint32_t key = b->mr->rkey;
    uint64_t to = (uintptr_t)b->memory;
    struct ibv_sge sge = piece(a, 0, 100), word = piece(a, 8192, 8);
    for (int i = 0; i < 100; i++)
        a->memory[i] = (uint8_t)(i + 1);

    SHOULD(receive(b, 1, 4096, 200) == 0);
    wc = post_and_wait(a, (struct ibv_send_wr){.wr_id = 2,
                                        .sg_list = &sge,
                                        .num_sge = 1,
                                        .opcode = IBV_WR_SEND,
                                        .send_flags = IBV_SEND_SIGNALED});
    SHOULD(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND &&
           wc.qp_num == a->qp->qp_num);
    wc = next_completion(b);
    SHOULD(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV &&
           wc.byte_len == 100 && wc.wc_flags == 0);
    SHOULD(wc.qp_num == b->qp->qp_num && memcmp(b->memory + 4096, a->memory, 100) == 0);

    wc = post_and_wait(a, (struct ibv_send_wr){.wr_id = 3,
                                        .sg_list = &sge,
                                        .num_sge = 1,
                                        .opcode = IBV_WR_RDMA_WRITE,
                                        .send_flags = IBV_SEND_SIGNALED,
                                        .wr.rdma = {to + 9000, key}});
    SHOULD(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);

    SHOULD(receive(b, 4, 0, 0) == 0);
    wc = post_and_wait(a, (struct ibv_send_wr){.wr_id = 5,
                                        .sg_list = &sge,
                                        .num_sge = 1,
                                        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                        .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
                                        .imm_data = htonl(0x12345678),
                                        .wr.rdma = {to + 10000, key}});
    SHOULD(wc.wr_id == 5 && wc.opcode == IBV_WC_RDMA_WRITE);
    wc = next_completion(b);
    SHOULD(wc.wr_id == 4 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
           wc.wc_flags == IBV_WC_WITH_IMM && wc.byte_len == 100);
    SHOULD(wc.imm_data == htonl(0x12345678) && memcmp(b->memory + 10000, a->memory, 100) == 0);
    SHOULD(memcmp(b->memory + 9000, a->memory, 100) == 0);

    struct ibv_sge sink = piece(a, 20000, 100);
    wc = post_and_wait(a, (struct ibv_send_wr){.wr_id = 6,
                                        .sg_list = &sink,
                                        .num_sge = 1,
                                        .opcode = IBV_WR_RDMA_READ,
                                        .send_flags = IBV_SEND_SIGNALED,
                                        .wr.rdma = {to + 9000, key}});
    SHOULD(wc.wr_id == 6 && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 100 &&
           wc.status == IBV_WC_SUCCESS);
    SHOULD(memcmp(a->memory + 20000, a->memory, 100) == 0);

    *(uint64_t *)(b->memory + 64) = 40;
    wc = post_and_wait(a, (struct ibv_send_wr){
                       .wr_id = 7,
                       .sg_list = &word,
                       .num_sge = 1,
                       .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                       .send_flags = IBV_SEND_SIGNALED,
                       .wr.atomic = {.remote_addr = to + 64, .compare_add = 2, .rkey = key}});
    SHOULD(wc.opcode == IBV_WC_FETCH_ADD && wc.status == IBV_WC_SUCCESS && wc.byte_len == 8);
    SHOULD(*(uint64_t *)(a->memory + 8192) == 40 && *(uint64_t *)(b->memory + 64) == 42);
    wc = post_and_wait(
        a, (struct ibv_send_wr){
               .wr_id = 8,
               .sg_list = &word,
               .num_sge = 1,
               .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
               .send_flags = IBV_SEND_SIGNALED,
               .wr.atomic = {.remote_addr = to + 64, .compare_add = 42, .swap = 7, .rkey = key}});
    SHOULD(wc.opcode == IBV_WC_COMP_SWAP && *(uint64_t *)(a->memory + 8192) == 42 &&
           *(uint64_t *)(b->memory + 64) == 7);

    /* Inline data needs no region and may have two pieces. A request without a completion is
     * done when the next one completes. */
    uint8_t own[2][8] = {"inline!", "inlines"};
    struct ibv_sge pieces[2] = {{(uintptr_t)own[0], 7, 0}, {(uintptr_t)own[1], 7, 0}};
    struct ibv_send_wr second = {.wr_id = 10,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
                                 .wr.rdma = {to, key}};
    struct ibv_send_wr first = {.wr_id = 9,
                                .next = &second,
                                .sg_list = pieces,
                                .num_sge = 2,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .send_flags = IBV_SEND_INLINE,
                                .wr.rdma = {to + 30000, key}};
    wc = post_and_wait(a, first);
    SHOULD(wc.wr_id == 10);
    sink = piece(a, 20000, 14);
    wc = post_and_wait(a, (struct ibv_send_wr){.wr_id = 11,
                                        .sg_list = &sink,
                                        .num_sge = 1,
                                        .opcode = IBV_WR_RDMA_READ,
                                        .send_flags = IBV_SEND_SIGNALED,
                                        .wr.rdma = {to + 30000, key}});
    SHOULD(memcmp(a->memory + 20000, "inline!inlines", 14) == 0);

    /* A window of the peer: bound, used, and invalidated by a Send. */
    struct ibv_mw *window = ibv_alloc_mw(b->pd, IBV_MW_TYPE_2);
    SHOULD(window != NULL);
    uint32_t open = ibv_inc_rkey(window->rkey);
    wc = post_and_wait(b, (struct ibv_send_wr){
                       .wr_id = 12,
                       .opcode = IBV_WR_BIND_MW,
                       .send_flags = IBV_SEND_SIGNALED,
                       .bind_mw = {window, open, {b->mr, to + 500, 50, IBV_ACCESS_REMOTE_WRITE}}});
    SHOULD(wc.opcode == IBV_WC_BIND_MW && wc.status == IBV_WC_SUCCESS);
    sge = piece(a, 0, 50);
    SHOULD(receive(b, 13, 4096, 200) == 0);
    post_and_wait(a, (struct ibv_send_wr){.wr_id = 14,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {to + 500, open}});
    wc = post_and_wait(a, (struct ibv_send_wr){.wr_id = 15,
                                        .opcode = IBV_WR_SEND_WITH_INV,
                                        .send_flags = IBV_SEND_SIGNALED,
                                        .invalidate_rkey = open});
    SHOULD(wc.wr_id == 15 && wc.opcode == IBV_WC_SEND);
    wc = next_completion(b);
    SHOULD(wc.wr_id == 13 && wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == open &&
           wc.byte_len == 0);
    SHOULD(memcmp(b->memory + 500, a->memory, 50) == 0);
    SHOULD(ibv_dealloc_mw(window) == 0);
    finish(s);
}

static void refused_requests(void) {
    struct side s[2];
    connect_sides(s, (struct options){0});
    struct side *a = &s[0], *b = &s[1];
    struct ibv_sge list[9], two = piece(a, 0, 4);
    for (int i = 0; i < 9; i++)
        list[i] = two;
    struct ibv_send_wr last = {.wr_id = 3,
                               .sg_list = list,
                               .num_sge = 3,
                               .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED},
                       *bad = NULL;
    struct ibv_send_wr first = {.wr_id = 2,
                                .next = &last,
                                .sg_list = list,
                                .num_sge = 2,
                                .opcode = IBV_WR_SEND,
                                .send_flags = IBV_SEND_SIGNALED};
    SHOULD(receive(b, 1, 0, 100) == 0);
    /* The first request is posted; the second one fails and is returned. */
    SHOULD(ibv_post_send(a->qp, &first, &bad) == EINVAL && bad == &last);
    SHOULD(next_completion(a).wr_id == 2 && next_completion(b).byte_len == 8);
    last.num_sge = 9;
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL && bad == &last);
    last.num_sge = -1;
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL);
    last.num_sge = 1;
    last.sg_list = NULL;
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL);
    last.sg_list = list;
    last.opcode = IBV_WR_SEND_WITH_IMM;
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL);
    last.opcode = IBV_WR_TSO;
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL);
    last.opcode = 77;
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL);
    last.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL);
    last.opcode = IBV_WR_RDMA_READ;
    last.num_sge = 2;
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL);
    list[0].length = 5000;
    last = (struct ibv_send_wr){
        .sg_list = list, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE};
    SHOULD(ibv_post_send(a->qp, &last, &bad) == EINVAL);
    struct ibv_recv_wr wr = {.sg_list = list, .num_sge = 3}, *bad_recv = NULL;
    SHOULD(ibv_post_recv(a->qp, &wr, &bad_recv) == EINVAL && bad_recv == &wr);
    SHOULD(ibv_poll_cq(a->cq, 0, NULL) == 0);

    /* A queue is full at its depth and not before. */
    for (int i = 0; i < DEPTH; i++)
        SHOULD(receive(a, 100 + i, 0, 4) == 0);
    SHOULD(receive(a, 1, 0, 4) == ENOMEM);
    /* A list whose first request fits and whose last one does not. */
    SHOULD(receive(b, 1, 0, 4) == 0);
    finish(s);
}

static void states(void) {
    struct side s[2];
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    struct ibv_wc wc;
    connect_sides(s, (struct options){0});
    struct side *a = &s[0], *b = &s[1];
    SHOULD(ibv_query_qp(a->qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS &&
           a->qp->state == IBV_QPS_RTS);
    SHOULD(init.send_cq == a->cq && init.cap.max_send_wr == DEPTH && init.qp_type == IBV_QPT_RC &&
           init.qp_context == a);

    /* A queue pair without a connection moves to RTR at most. */
    struct ibv_qp_init_attr lone = {.send_cq = a->cq,
                                    .recv_cq = a->cq,
                                    .cap = {.max_send_wr = 4, .max_recv_wr = 4},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(a->pd, &lone);
    MUST(qp != NULL);
    SHOULD(qp->state == IBV_QPS_RESET && lone.cap.max_send_sge >= 1);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
    SHOULD(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 2};
    SHOULD(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL &&
           qp->state == IBV_QPS_RESET);
    /* Cards of this node type report INIT for a new queue pair. */
    SHOULD(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_INIT &&
           qp->state == IBV_QPS_INIT);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
    SHOULD(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0 && qp->state == IBV_QPS_INIT);
    attr.qp_state = IBV_QPS_RTR;
    SHOULD(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    SHOULD(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad;
    SHOULD(ibv_post_send(qp, &send, &bad) == EINVAL && bad == &send);
    struct ibv_recv_wr recv = {.wr_id = 77}, *bad_recv;
    SHOULD(ibv_post_recv(qp, &recv, &bad_recv) == 0);
    SHOULD(ibv_destroy_cq(a->cq) == EBUSY && errno == EBUSY);
    SHOULD(ibv_dealloc_pd(a->pd) == EBUSY && errno == EBUSY);
    SHOULD(ibv_destroy_comp_channel(a->channel) == EBUSY && errno == EBUSY);
    attr.qp_state = IBV_QPS_ERR;
    SHOULD(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_ERR);
    wc = next_completion(a);
    SHOULD(wc.wr_id == 77 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == qp->qp_num);
    SHOULD(ibv_post_recv(qp, &recv, &bad_recv) == 0 &&
           next_completion(a).status == IBV_WC_WR_FLUSH_ERR);
    attr.qp_state = IBV_QPS_INIT;
    SHOULD(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    attr.qp_state = IBV_QPS_RESET;
    SHOULD(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_RESET);
    SHOULD(ibv_destroy_qp(qp) == 0);
    for (enum ibv_qp_type type = IBV_QPT_UC; type <= IBV_QPT_UD; type++) {
        lone.qp_type = type;
        SHOULD(ibv_create_qp(a->pd, &lone) == NULL && errno == EOPNOTSUPP);
    }
    lone.qp_type = IBV_QPT_RC;
    lone.cap.max_send_wr = 1 << 30;
    SHOULD(ibv_create_qp(a->pd, &lone) == NULL && errno == EINVAL);

    /* The error state ends the connection, and the peer sees the end. */
    SHOULD(receive(a, 5, 0, 4) == 0 && receive(b, 6, 0, 4) == 0);
    attr.qp_state = IBV_QPS_ERR;
    SHOULD(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE) == 0);
    wc = next_completion(a);
    SHOULD(wc.wr_id == 5 && wc.status == IBV_WC_WR_FLUSH_ERR);
    wc = next_completion(b);
    SHOULD(wc.wr_id == 6 && wc.status == IBV_WC_WR_FLUSH_ERR);
    rdma_ack_cm_event(expect(b->id->channel, RDMA_CM_EVENT_DISCONNECTED));
    SHOULD(ibv_query_qp(b->qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
    finish(s);
}

static void extended(void) {
    struct side s[2];
    connect_sides(s, (struct options){.extended = 1});
    struct side *a = &s[0], *b = &s[1];
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a->qp);
    struct ibv_cq_ex *cq = (struct ibv_cq_ex *)b->cq, *own = (struct ibv_cq_ex *)a->cq;
    struct ibv_poll_cq_attr poll_attr = {0};
    struct ibv_values_ex before = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, after = before;
    struct timespec wall;
    MUST(qp != NULL);
    SHOULD(ibv_start_poll(own, &poll_attr) == ENOENT);
    SHOULD(receive(b, 1, 0, 100) == 0 && receive(b, 2, 0, 100) == 0 &&
           receive(b, 3, 1000, 100) == 0);
    SHOULD(ibv_query_rt_values_ex(a->id->verbs, &before) == 0 &&
           before.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
    struct ibv_data_buf bufs[2] = {{"two ", 4}, {"pieces", 6}};
    memcpy(a->memory, "in a region", 11);
    ibv_wr_start(qp);
    qp->wr_id = 10;
    qp->wr_flags = 0;
    ibv_wr_send(qp);
    ibv_wr_set_inline_data_list(qp, 2, bufs);
    qp->wr_id = 11;
    ibv_wr_rdma_write_imm(qp, b->mr->rkey, (uintptr_t)b->memory + 5000, htonl(99));
    ibv_wr_set_sge(qp, a->mr->lkey, (uintptr_t)a->memory, 11);
    qp->wr_id = 12;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(qp);
    struct ibv_sge list[2] = {piece(a, 0, 5), piece(a, 5, 6)};
    ibv_wr_set_sge_list(qp, 2, list);
    SHOULD(ibv_wr_complete(qp) == 0);
    while (ibv_start_poll(own, &poll_attr) == ENOENT)
        ;
    SHOULD(own->wr_id == 12 && own->status == IBV_WC_SUCCESS &&
           ibv_wc_read_opcode(own) == IBV_WC_SEND);
    SHOULD(ibv_next_poll(own) == ENOENT);
    ibv_end_poll(own);

    int count = 0;
    uint64_t at[3] = {0}, wall_at = 0;
    while (count < 3) {
        if (ibv_start_poll(cq, &poll_attr) == ENOENT)
            continue;
        do {
            SHOULD(cq->wr_id == (uint64_t)count + 1 && cq->status == IBV_WC_SUCCESS &&
                   ibv_wc_read_qp_num(cq) == b->qp->qp_num);
            at[count] = ibv_wc_read_completion_ts(cq);
            wall_at = ibv_wc_read_completion_wallclock_ns(cq);
            if (count == 0)
                SHOULD(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_byte_len(cq) == 10 &&
                       ibv_wc_read_wc_flags(cq) == 0);
            if (count == 1)
                SHOULD(ibv_wc_read_opcode(cq) == IBV_WC_RECV_RDMA_WITH_IMM &&
                       ibv_wc_read_imm_data(cq) == htonl(99) &&
                       ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM &&
                       ibv_wc_read_byte_len(cq) == 11);
            if (count == 2)
                SHOULD(ibv_wc_read_byte_len(cq) == 11 && ibv_wc_read_vendor_err(cq) == 0 &&
                       ibv_wc_read_src_qp(cq) == 0 && ibv_wc_read_sl(cq) == 0);
            count++;
        } while (ibv_next_poll(cq) == 0);
        ibv_end_poll(cq);
    }
    SHOULD(memcmp(b->memory, "two pieces", 10) == 0 &&
           memcmp(b->memory + 5000, "in a region", 11) == 0 &&
           memcmp(b->memory + 1000, "in a region", 11) == 0);
    SHOULD(ibv_query_rt_values_ex(a->id->verbs, &after) == 0);
    SHOULD((uint64_t)before.raw_clock.tv_nsec <= at[0] && at[0] <= at[1] && at[1] <= at[2] &&
           at[2] <= (uint64_t)after.raw_clock.tv_nsec);
    clock_gettime(CLOCK_REALTIME, &wall);
    SHOULD(wall_at / 1000000000 + 5 > (uint64_t)wall.tv_sec &&
           wall_at / 1000000000 <= (uint64_t)wall.tv_sec);

    /* One invalid request, and none is posted. */
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    ibv_wr_set_sge(qp, a->mr->lkey, (uintptr_t)a->memory, 1);
    ibv_wr_send_imm(qp, 1);
    SHOULD(ibv_wr_complete(qp) == EINVAL);
    ibv_wr_start(qp);
    for (int i = 0; i <= DEPTH; i++)
        ibv_wr_send(qp);
    SHOULD(ibv_wr_complete(qp) == ENOMEM);
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    ibv_wr_abort(qp);

    /* Atomics and Reads: the word's old value, and the data written before. */
    uint64_t *word = (uint64_t *)(b->memory + 64);
    *word = 5;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_start(qp);
    ibv_wr_atomic_fetch_add(qp, b->mr->rkey, (uintptr_t)word, 3);
    ibv_wr_set_sge(qp, a->mr->lkey, (uintptr_t)a->memory + 800, 8);
    ibv_wr_atomic_cmp_swp(qp, b->mr->rkey, (uintptr_t)word, 8, 1);
    ibv_wr_set_sge(qp, a->mr->lkey, (uintptr_t)a->memory + 808, 8);
    ibv_wr_rdma_read(qp, b->mr->rkey, (uintptr_t)b->memory + 5000);
    ibv_wr_set_sge(qp, a->mr->lkey, (uintptr_t)a->memory + 900, 11);
    SHOULD(ibv_wr_complete(qp) == 0);
    SHOULD(next_completion(a).opcode == IBV_WC_FETCH_ADD &&
           next_completion(a).opcode == IBV_WC_COMP_SWAP && next_completion(a).byte_len == 11);
    SHOULD(*(uint64_t *)(a->memory + 800) == 5 && *(uint64_t *)(a->memory + 808) == 8 &&
           *word == 1);
    SHOULD(memcmp(a->memory + 900, "in a region", 11) == 0);

    struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE};
    SHOULD(ibv_modify_cq(a->cq, &moderate) == EOPNOTSUPP);
    struct ibv_cq_init_attr_ex attr = {.cqe = 1, .wc_flags = IBV_WC_EX_WITH_CVLAN};
    SHOULD(ibv_create_cq_ex(a->id->verbs, &attr) == NULL && errno == EOPNOTSUPP);
    struct ibv_qp_init_attr_ex more = {.send_cq = a->cq,
                                       .recv_cq = a->cq,
                                       .qp_type = IBV_QPT_RC,
                                       .pd = a->pd,
                                       .comp_mask =
                                           IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM};
    /* Programs ask for Sends with immediate data beside what they use; posting one fails. */
    struct ibv_qp *asked = ibv_create_qp_ex(a->id->verbs, &more);
    MUST(asked != NULL);
    qp = ibv_qp_to_qp_ex(asked);
    ibv_wr_start(qp);
    ibv_wr_send_imm(qp, 1);
    SHOULD(ibv_wr_complete(qp) == EINVAL && ibv_destroy_qp(asked) == 0);
    more.send_ops_flags = IBV_QP_EX_WITH_TSO;
    SHOULD(ibv_create_qp_ex(a->id->verbs, &more) == NULL && errno == EOPNOTSUPP);
    finish(s);
}

/* The peer's Writes arrive while this program only reads its memory, and the peer's Reads are
 * served while it sleeps. */
static void no_calls(void) {
    struct side s[2];
    int down[2], up[2], status;
    char word = 0;
    MUST(pipe(down) == 0 && pipe(up) == 0);
    connect_sides(s, (struct options){0});
    struct side *a = &s[0], *b = &s[1];
    struct ibv_sge sge = piece(a, 0, 1);
    volatile uint8_t *seen = b->memory + 100;
    for (int i = 1; i <= 100; i++) {
        a->memory[0] = (uint8_t)i;
        struct ibv_send_wr write = {.sg_list = &sge,
                                    .num_sge = 1,
                                    .opcode = IBV_WR_RDMA_WRITE,
                                    .send_flags = i % 32 ? 0 : IBV_SEND_SIGNALED,
                                    .wr.rdma = {(uintptr_t)seen, b->mr->rkey}},
                           *bad;
        int error = ibv_post_send(a->qp, &write, &bad);
        MUST(error == 0);
        while (*seen != i)
            ;
        if (i % 32 == 0)
            next_completion(a);
    }
    /* A forked child touches none of its parent's objects and can destroy inherited ones. */
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        struct ibv_wc wc;
        struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad;
        SHOULD(ibv_poll_cq(b->cq, 1, &wc) == 0);
        SHOULD(ibv_post_send(a->qp, &send, &bad) == EINVAL);
        SHOULD(ibv_destroy_qp(a->qp) == 0 && ibv_dereg_mr(a->mr) == 0 &&
               ibv_destroy_cq(a->cq) == 0);
        /* The child has an engine of its own. */
        struct side own[2];
        connect_sides(own, (struct options){0});
        SHOULD(receive(&own[1], 1, 0, 4) == 0);
        post_and_wait(&own[0],
               (struct ibv_send_wr){.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED});
        SHOULD(next_completion(&own[1]).wr_id == 1);
        finish(own);
        word = wrong ? 'x' : 'k';
        MUST(write(up[1], &word, 1) == 1);
        _exit(0);
    }
    MUST(read(up[0], &word, 1) == 1);
    SHOULD(word == 'k' && waitpid(child, &status, 0) == child && status == 0);
    SHOULD(receive(b, 3, 0, 4) == 0);
    post_and_wait(a, (struct ibv_send_wr){.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED});
    SHOULD(next_completion(b).wr_id == 3);
    finish(s);
}

/* Several threads use one queue pair and one queue: every message arrives once. */
static struct side *many;
static void *sends(void *count) {
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad;
    for (int i = 0; i < (int)(intptr_t)count;)
        i += ibv_post_send(many->qp, &send, &bad) == 0;
    return NULL;
}

static void threads(void) {
    struct side s[2];
    connect_sides(s, (struct options){0});
    many = &s[0];
    enum { EACH = 2000, THREADS = 3 };
    pthread_t thread[THREADS];
    for (int i = 0; i < DEPTH; i++)
        SHOULD(receive(&s[1], i, 0, 4) == 0);
    /* The queue has room for the requests of one thread only. */
    int left = EACH * THREADS, credits = DEPTH;
    (void)credits;
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&thread[i], NULL, sends, (void *)(intptr_t)(DEPTH / 4)) == 0);
    for (int i = 0; i < THREADS * (DEPTH / 4); i++, left--) {
        struct ibv_wc wc = next_completion(&s[1]);
        SHOULD(wc.status == IBV_WC_SUCCESS);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    struct ibv_wc wc;
    SHOULD(ibv_poll_cq(s[1].cq, 1, &wc) == 0);
    finish(s);
}

/* The rights of a queue pair restrict its peer whatever the region allows; a new one grants all
 * rights. */
static void rights(void) {
    const int flags[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC};
    const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                      IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (int i = 0; i < 3; i++) {
        struct side s[2];
        connect_sides(s, (struct options){0});
        struct side *a = &s[0], *b = &s[1];
        struct ibv_sge sge = piece(a, 0, 8);
        struct ibv_send_wr wr = {
            .sg_list = &sge, .num_sge = 1, .opcode = ops[i], .send_flags = IBV_SEND_SIGNALED};
        if (i == 2) {
            wr.wr.atomic.remote_addr = (uintptr_t)b->memory;
            wr.wr.atomic.rkey = b->mr->rkey;
        } else {
            wr.wr.rdma.remote_addr = (uintptr_t)b->memory;
            wr.wr.rdma.rkey = b->mr->rkey;
        }
        SHOULD(post_and_wait(a, wr).status == IBV_WC_SUCCESS);
        /* All rights but this one, then this one alone, to which nothing changes. */
        struct ibv_qp_attr attr = {.qp_access_flags = flags[i]};
        SHOULD(ibv_modify_qp(b->qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
        SHOULD(post_and_wait(a, wr).status == IBV_WC_SUCCESS);
        attr.qp_access_flags = (flags[0] | flags[1] | flags[2]) & ~flags[i];
        SHOULD(ibv_modify_qp(b->qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
        memset(a->memory, 0x77, 8);
        uint64_t before = *(uint64_t *)b->memory;
        struct ibv_send_wr *bad;
        MUST(ibv_post_send(a->qp, &wr, &bad) == 0);
        rdma_ack_cm_event(expect(a->id->channel, RDMA_CM_EVENT_DISCONNECTED));
        SHOULD(*(uint64_t *)b->memory == before && a->memory[0] == 0x77);
        /* A Write may have completed before it is rejected. */
        enum ibv_wc_status status = next_completion(a).status;
        SHOULD(status == IBV_WC_REM_ACCESS_ERR || (i == 0 && status == IBV_WC_SUCCESS));
        rdma_ack_cm_event(expect(b->id->channel, RDMA_CM_EVENT_DISCONNECTED));
        finish(s);
    }
}

int main(int count, char **names) {
    struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"every_operation", every_operation},
                 {"refused_requests", refused_requests},
                 {"states", states},
                 {"extended", extended},
                 {"no_calls", no_calls},
                 {"rights", rights},
                 {"threads", threads}};
    alarm(60);
    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
        if (count < 2 || strcmp(names[1], tests[i].name) == 0)
            tests[i].run();
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
