/* Memory windows, and objects that open memory to a peer and are destroyed. */
#include "memory.h"

/* Writes 8 bytes through a key and returns the outcome. A Read behind the Write shows that it
 * was placed. */
static int through(struct side *side, uint32_t key, char *at, enum ibv_wr_opcode op) {
    struct ibv_sge sge = {(uintptr_t)side->at, 8, side->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = op,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)at;
    wr.wr.rdma.rkey = key;
    MUST(ibv_post_send(side->id->qp, &wr, &bad) == 0);
    return next_status(side);
}

static int posted(struct side *side, struct ibv_send_wr wr) {
    struct ibv_send_wr *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    int refused = ibv_post_send(side->id->qp, &wr, &bad);
    return refused ? -refused : next_status(side);
}

static void windows(void) {
    struct side a, b;
    connect_both(&a, &b);
    SHOULD(ibv_alloc_mw(b.pd, 3) == NULL && errno == EINVAL);
    struct ibv_mw *one = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1),
                  *two = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
    MUST(one != NULL && two != NULL && one->pd == b.pd && one->type == IBV_MW_TYPE_1 &&
         two->context == b.id->verbs);
    struct ibv_mw_bind bind = {.wr_id = 5, .send_flags = IBV_SEND_SIGNALED};
    bind.bind_info = (struct ibv_mw_bind_info){b.mr, (uintptr_t)b.at + 8, 64,
                                               IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    uint32_t key = one->rkey;
    SHOULD(ibv_bind_mw(b.id->qp, two, &bind) == EINVAL);
    bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
    SHOULD(ibv_bind_mw(b.id->qp, one, &bind) == EINVAL && one->rkey == key);
    bind.bind_info.mw_access_flags &= ~IBV_ACCESS_ZERO_BASED;
    SHOULD(ibv_bind_mw(b.id->qp, one, &bind) == 0 && next_status(&b) == IBV_WC_SUCCESS);
    SHOULD(one->rkey == ibv_inc_rkey(key));
    SHOULD(ibv_dereg_mr(b.mr) == EBUSY);
    SHOULD(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) ==
               IBV_REREG_MR_ERR_CMD &&
           errno == EBUSY);
    strcpy(a.at, "sprats!");
    SHOULD(through(&a, one->rkey, b.at + 8, IBV_WR_RDMA_WRITE) == IBV_WC_SUCCESS);
    SHOULD(through(&a, one->rkey, b.at + 8, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS &&
           strcmp(b.at + 8, "sprats!") == 0);
    /* A window that is not bound does not hold its region. */
    bind.bind_info = (struct ibv_mw_bind_info){NULL, 0, 0, 0};
    SHOULD(ibv_bind_mw(b.id->qp, one, &bind) == 0 && next_status(&b) == IBV_WC_SUCCESS);

    struct ibv_send_wr wr = {
        .opcode = IBV_WR_BIND_MW,
        .bind_mw = {two,
                    ibv_inc_rkey(two->rkey),
                    {b.mr, (uintptr_t)b.at, 64, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ}}};
    SHOULD(posted(&b, wr) == IBV_WC_SUCCESS);
    SHOULD(through(&a, wr.bind_mw.rkey, b.at, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS);
    struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV,
                                     .invalidate_rkey = wr.bind_mw.rkey};
    SHOULD(posted(&b, invalidate) == IBV_WC_SUCCESS);
    /* Bound again under the next key, the window is invalidated by the peer. */
    wr.bind_mw.rkey = ibv_inc_rkey(wr.bind_mw.rkey);
    SHOULD(posted(&b, wr) == IBV_WC_SUCCESS);
    receive(&b, 8);
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = wr.bind_mw.rkey};
    SHOULD(posted(&a, send) == IBV_WC_SUCCESS && next_status(&b) == IBV_WC_SUCCESS);
    /* Freeing a window also ends its old key. */
    SHOULD(through(&a, wr.bind_mw.rkey, b.at, IBV_WR_RDMA_READ) == IBV_WC_REM_ACCESS_ERR);
    SHOULD(ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0);
    disconnect_both(&a, &b);
}

/* Binds a window of either type to all of b's memory; returns its key. */
static uint32_t bound(struct side *b, struct ibv_mw *window) {
    struct ibv_mw_bind_info info = {b->mr, (uintptr_t)b->at, LENGTH,
                                    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    if (window->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = info};
        MUST(ibv_bind_mw(b->id->qp, window, &bind) == 0 && next_status(b) == IBV_WC_SUCCESS);
        return window->rkey;
    }
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW,
                             .bind_mw = {window, ibv_inc_rkey(window->rkey), info}};
    MUST(posted(b, wr) == IBV_WC_SUCCESS);
    return wr.bind_mw.rkey;
}

/* Objects that open memory to a peer and are then destroyed. For RIGHTS the region remains
 * without remote rights. */
enum opens { WINDOW_1, WINDOW_2, REGION, REREGISTERED, RIGHTS, OPENERS };

/* Opens all of b's memory, and closes it once the peer has used it; returns the key. */
static uint32_t opened_for_a_while(struct side *a, struct side *b, enum opens opens) {
    uint32_t key = b->mr->rkey;
    struct ibv_mw *window = NULL;
    if (opens == WINDOW_1 || opens == WINDOW_2) {
        MUST((window = ibv_alloc_mw(b->pd, opens == WINDOW_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2)) !=
             NULL);
        key = bound(b, window);
        SHOULD(ibv_dereg_mr(b->mr) == EBUSY);
    }
    SHOULD(through(a, key, b->at, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS);
    if (window)
        SHOULD(ibv_dealloc_mw(window) == 0);
    if (opens == REREGISTERED) {
        SHOULD(ibv_rereg_mr(b->mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b->at, LENGTH, 0) == 0 &&
               b->mr->rkey != key);
        return key;
    }
    if (opens == RIGHTS) {
        SHOULD(ibv_rereg_mr(b->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                            IBV_ACCESS_LOCAL_WRITE) == 0 &&
               b->mr->rkey == key);
        return key;
    }
    /* No window holds the region any more. */
    SHOULD(ibv_dereg_mr(b->mr) == 0);
    MUST((b->mr = ibv_reg_mr(b->pd, b->at, LENGTH, ALL)) != NULL);
    return key;
}

/* A destroyed object opens nothing: a Write changes nothing, a Read returns nothing, and each
 * ends its connection. Nothing stays busy: `destroy` succeeds. */
static void ends(void) {
    for (enum opens opens = 0; opens < OPENERS; opens++)
        for (int reads = 0; reads < 2; reads++) {
            struct side a, b;
            connect_both(&a, &b);
            uint32_t key = opened_for_a_while(&a, &b, opens);
            memset(a.at, 9, 8);
            memset(b.at, 1, 8);
            int status = through(&a, key, b.at, reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
            SHOULD(!reads || status == IBV_WC_REM_ACCESS_ERR);
            expect_event(client_events, RDMA_CM_EVENT_DISCONNECTED);
            expect_event(server_events, RDMA_CM_EVENT_DISCONNECTED);
            SHOULD(a.at[0] == 9 && b.at[0] == 1);
            destroy(&a);
            destroy(&b);
        }
}

int main(int count, char **words) {
    const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"windows", windows}, {"ends", ends}};
    for (unsigned i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        if (count == 2 && strcmp(words[1], parts[i].name) == 0) {
            parts[i].run();
            if (!wrong)
                puts("all as it should be");
            return wrong;
        }
    puts("which part?");
    return 2;
}
