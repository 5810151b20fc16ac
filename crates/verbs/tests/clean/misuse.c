/* Misuse of verbs objects: null, destroyed, of another domain, without the right, too many, in
 * use, of a parent process; killed peers; no descriptor left. Prints whatever fails. memory.c
 * tests memory, misuse.c rdma_cm, path.c the data path. */
#include <sys/resource.h>
#include "../path/path.h"

static struct ibv_send_wr plain(struct ibv_sge *sge, enum ibv_wr_opcode opcode) {
    return (struct ibv_send_wr){.wr_id = 7,
                                .sg_list = sge,
                                .num_sge = 1,
                                .opcode = opcode,
                                .send_flags = IBV_SEND_SIGNALED};
}

/* Null objects, where rdma-core checks for them or would read from address 0. */
static void nothing(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    MUST(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
    struct ibv_srq_init_attr shared = {.attr.max_wr = 1};
    struct ibv_qp_attr attr;
    union ibv_gid gid;
    struct ibv_async_event event;
    struct ibv_cq *cq;
    __be16 key;
    void *user;
    MUST(context && pd);
    ibv_free_device_list(list);
    ibv_free_device_list(NULL);
    SHOULD(ibv_open_device(NULL) == NULL && errno == ENODEV);
    SHOULD(ibv_close_device(NULL) == EINVAL);
    SHOULD(ibv_alloc_pd(NULL) == NULL && errno == EINVAL);
    SHOULD(ibv_dealloc_pd(NULL) == EINVAL);
    SHOULD(ibv_create_comp_channel(NULL) == NULL && errno == EINVAL);
    SHOULD(ibv_destroy_comp_channel(NULL) == EINVAL);
    SHOULD(ibv_create_cq(NULL, 1, NULL, NULL, 0) == NULL && errno == EINVAL);
    SHOULD(ibv_create_cq(context, -1, NULL, NULL, 0) == NULL && errno == EINVAL);
    SHOULD(ibv_create_cq(context, 1, NULL, NULL, -1) == NULL && errno == EINVAL);
    SHOULD(ibv_create_cq(context, 0x7fffffff, NULL, NULL, 0) == NULL && errno == EINVAL);
    SHOULD(ibv_resize_cq(NULL, 1) == EINVAL && ibv_destroy_cq(NULL) == EINVAL);
    SHOULD(ibv_create_srq(NULL, &shared) == NULL && errno == EINVAL);
    SHOULD(ibv_create_srq(pd, NULL) == NULL && errno == EINVAL);
    shared.attr.max_wr = 0;
    SHOULD(ibv_create_srq(pd, &shared) == NULL && errno == EINVAL);
    SHOULD(ibv_modify_srq(NULL, NULL, 0) == EINVAL && ibv_query_srq(NULL, NULL) == EINVAL &&
           ibv_destroy_srq(NULL) == EINVAL);
    SHOULD(ibv_create_qp(NULL, &init) == NULL && errno == EINVAL);
    SHOULD(ibv_create_qp(pd, NULL) == NULL && errno == EINVAL);
    SHOULD(ibv_create_qp(pd, &init) == NULL && errno == EINVAL);
    SHOULD(ibv_modify_qp(NULL, &attr, 0) == EINVAL &&
           ibv_query_qp(NULL, &attr, 0, &init) == EINVAL && ibv_destroy_qp(NULL) == EINVAL);
    SHOULD(ibv_get_cq_event(NULL, &cq, &user) == -1 && errno == EINVAL);
    SHOULD(ibv_get_async_event(NULL, &event) == -1 && errno == EINVAL);
    SHOULD(ibv_get_async_event(context, NULL) == -1 && errno == EINVAL);
    ibv_ack_async_event(NULL);
    ibv_ack_cq_events(NULL, 1);
    struct ibv_device_attr device;
    SHOULD(ibv_query_device(NULL, &device) == EINVAL && ibv_query_device(context, NULL) == EINVAL);
    SHOULD(ibv_query_gid(NULL, 1, 0, &gid) != 0 && ibv_query_gid(context, 1, 0, NULL) != 0);
    SHOULD(ibv_query_gid(context, 2, 0, &gid) != 0 && ibv_query_gid(context, 1, 1000, &gid) != 0 &&
           ibv_query_gid(context, 1, -1, &gid) != 0);
    SHOULD(ibv_query_pkey(context, 1, 1000, &key) != 0 &&
           ibv_query_pkey(context, 1, -1, &key) != 0 && ibv_query_pkey(NULL, 1, 0, &key) != 0);
    SHOULD(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* The status of a request of `a` to the peer's memory at `remote` under `key`. */
static enum ibv_wc_status ends(struct side *a, struct ibv_sge sge, enum ibv_wr_opcode opcode,
                               uint64_t remote, uint32_t key) {
    struct ibv_send_wr wr = plain(&sge, opcode);
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = remote;
        wr.wr.atomic.rkey = key;
    } else {
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = key;
    }
    return post_and_wait(a, wr).status;
}

/* Keys that a request must not use. Each error ends the connection. */
enum { GIVEN_BACK, OTHER_DOMAIN, NO_RIGHT, CASES };
static const enum ibv_wr_opcode reaching[] = {
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};

static void keys_of_the_peer(void) {
    for (int which = 0; which < CASES; which++)
        for (size_t op = 0; op < sizeof(reaching) / sizeof(*reaching); op++) {
            struct side s[2];
            connect_sides(s, (struct options){0});
            struct side *a = &s[0], *b = &s[1];
            static char memory[4096] __attribute__((aligned(4096)));
            struct ibv_pd *other = ibv_alloc_pd(b->id->verbs);
            /* All rights but the required one. */
            static const int right[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                                        IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC};
            int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                      IBV_ACCESS_REMOTE_ATOMIC;
            struct ibv_mr *mr =
                ibv_reg_mr(which == OTHER_DOMAIN ? other : b->pd, memory, sizeof(memory),
                           which == NO_RIGHT ? all & ~right[op] : all);
            MUST(other && mr);
            uint32_t key = mr->rkey;
            if (which == GIVEN_BACK)
                SHOULD(ibv_dereg_mr(mr) == 0);
            SHOULD(receive(b, 5, 0, 4) == 0);
            memset(memory, 3, sizeof(memory));
            enum ibv_wc_status status =
                ends(a, piece(a, 0, 8), reaching[op], (uintptr_t)memory, key);
            /* A Write may complete when it is sent. The peer gets an error in any case. */
            if (reaching[op] != IBV_WR_RDMA_WRITE)
                SHOULD(status == IBV_WC_REM_ACCESS_ERR);
            SHOULD(next_completion(b).status == IBV_WC_WR_FLUSH_ERR && memory[0] == 3);
            if (which != GIVEN_BACK)
                SHOULD(ibv_dereg_mr(mr) == 0);
            SHOULD(ibv_dealloc_pd(other) == 0);
            finish(s);
        }
}

static void own_keys(void) {
    for (int which = 0; which < CASES; which++)
        for (int use = 0; use < 4; use++) {
            struct side s[2];
            connect_sides(s, (struct options){0});
            struct side *a = &s[0], *b = &s[1];
            struct ibv_pd *other = ibv_alloc_pd(a->id->verbs);
            struct ibv_mr *mr = ibv_reg_mr(which == OTHER_DOMAIN ? other : a->pd, a->memory, 4096,
                                           which == NO_RIGHT ? 0 : IBV_ACCESS_LOCAL_WRITE);
            MUST(other && mr);
            struct ibv_sge sge = {(uintptr_t)a->memory, 8, mr->lkey};
            struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1}, *bad;
            if (which == GIVEN_BACK)
                SHOULD(ibv_dereg_mr(mr) == 0);
            SHOULD(receive(b, 5, 0, 8) == 0);
            enum ibv_wc_status status = IBV_WC_SUCCESS;
            switch (use) {
            case 0:
                status = ends(a, sge, IBV_WR_SEND, 0, 0);
                break;
            case 1:
                status = ends(a, sge, IBV_WR_RDMA_WRITE, (uintptr_t)b->memory, b->mr->rkey);
                break;
            case 2:
                status = ends(a, sge, IBV_WR_RDMA_READ, (uintptr_t)b->memory, b->mr->rkey);
                break;
            case 3:
                /* A receive without valid memory fails when its message arrives. */
                SHOULD(ends(a, piece(a, 0, 8), IBV_WR_SEND, 0, 0) == IBV_WC_SUCCESS &&
                       next_completion(b).status == IBV_WC_SUCCESS);
                SHOULD(ibv_post_recv(a->qp, &wr, &bad) == 0 && receive(b, 5, 0, 8) == 0);
                post_and_wait(b, (struct ibv_send_wr){
                              .sg_list = &(struct ibv_sge){(uintptr_t)b->memory, 8, b->mr->lkey},
                              .num_sge = 1,
                              .opcode = IBV_WR_SEND,
                              .send_flags = IBV_SEND_SIGNALED});
                status = next_completion(a).status;
                break;
            }
            /* Reading needs no right. */
            if (which == NO_RIGHT && use < 2)
                SHOULD(status == IBV_WC_SUCCESS);
            else
                SHOULD(status == IBV_WC_LOC_PROT_ERR &&
                       next_completion(b).status == IBV_WC_WR_FLUSH_ERR);
            if (which != GIVEN_BACK)
                SHOULD(ibv_dereg_mr(mr) == 0);
            finish(s);
            SHOULD(ibv_dealloc_pd(other) == 0);
        }
}

/* Atomics that are not of eight bytes, or not aligned to eight bytes. */
static void atomics(void) {
    struct side s[2];
    connect_sides(s, (struct options){0});
    struct ibv_sge four = piece(&s[0], 0, 4);
    struct ibv_send_wr wr = plain(&four, IBV_WR_ATOMIC_FETCH_AND_ADD), *bad;
    wr.wr.atomic.remote_addr = (uintptr_t)s[1].memory;
    wr.wr.atomic.rkey = s[1].mr->rkey;
    SHOULD(ibv_post_send(s[0].qp, &wr, &bad) == EINVAL && bad == &wr);
    SHOULD(ends(&s[0], piece(&s[0], 0, 8), IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)s[1].memory + 4,
                s[1].mr->rkey) != IBV_WC_SUCCESS);
    finish(s);
}

/* Queues at their depths; a list returns the request that exceeds one. */
static void overfull(void) {
    struct side s[2];
    connect_sides(s, (struct options){.shared = 1});
    struct side *a = &s[0], *b = &s[1];
    struct ibv_sge sge = piece(a, 0, 4);
    struct ibv_send_wr sends[DEPTH + 2], *bad = NULL;
    for (int i = 0; i < DEPTH + 2; i++) {
        sends[i] = plain(&sge, IBV_WR_RDMA_WRITE);
        sends[i].wr_id = i;
        sends[i].wr.rdma.remote_addr = (uintptr_t)b->memory;
        sends[i].wr.rdma.rkey = b->mr->rkey;
        sends[i].next = i < DEPTH + 1 ? &sends[i + 1] : NULL;
    }
    SHOULD(ibv_post_send(a->qp, sends, &bad) == ENOMEM && bad == &sends[DEPTH]);
    for (int i = 0; i < DEPTH; i++)
        SHOULD(next_completion(a).wr_id == (uint64_t)i);
    SHOULD(post_and_wait(a, (struct ibv_send_wr){.wr_id = 99,
                                          .opcode = IBV_WR_RDMA_WRITE,
                                          .send_flags = IBV_SEND_SIGNALED})
               .wr_id == 99);
    sge = piece(b, 0, 4);
    struct ibv_recv_wr receives[DEPTH + 2], *bad_receive = NULL;
    for (int i = 0; i < DEPTH + 2; i++)
        receives[i] = (struct ibv_recv_wr){.wr_id = i,
                                           .sg_list = &sge,
                                           .num_sge = 1,
                                           .next = i < DEPTH + 1 ? &receives[i + 1] : NULL};
    SHOULD(ibv_post_srq_recv(b->srq, receives, &bad_receive) == ENOMEM &&
           bad_receive == &receives[DEPTH]);
    finish(s);
}

/* Objects in use cannot be destroyed, and keep working. */
static void busy(void) {
    struct side s[2];
    connect_sides(s, (struct options){.shared = 1});
    struct side *a = &s[0], *b = &s[1];
    struct ibv_context *context = ibv_open_device(a->id->verbs->device);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_srq_init_attr shared = {.attr.max_wr = 1};
    struct ibv_mr *mr = ibv_reg_mr(pd, a->memory, 8, 0);
    MUST(context && pd && mr);
    SHOULD(ibv_dealloc_pd(pd) == EBUSY && errno == EBUSY && ibv_dereg_mr(mr) == 0);
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    SHOULD(window && ibv_dealloc_pd(pd) == EBUSY && ibv_dealloc_mw(window) == 0);
    struct ibv_srq *srq = ibv_create_srq(pd, &shared);
    SHOULD(srq && ibv_dealloc_pd(pd) == EBUSY && ibv_destroy_srq(srq) == 0);
    SHOULD(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    SHOULD(ibv_destroy_cq(b->cq) == EBUSY && ibv_destroy_srq(b->srq) == EBUSY &&
           ibv_destroy_comp_channel(b->channel) == EBUSY);
    SHOULD(ibv_dealloc_pd(b->pd) == EBUSY);
    SHOULD(receive(b, 1, 0, 4) == 0 &&
           ends(a, piece(a, 0, 4), IBV_WR_SEND, 0, 0) == IBV_WC_SUCCESS &&
           next_completion(b).wr_id == 1);
    finish(s);
}

/* Closing a device always succeeds, as with rdma-core. Its objects are then in error and can
 * still be destroyed. */
static void closed(void) {
    struct side s[2];
    connect_sides(s, (struct options){0});
    struct ibv_context *context = ibv_open_device(s[0].id->verbs->device);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, s[0].memory, 8, IBV_ACCESS_LOCAL_WRITE);
    MUST(context && pd && cq && mr);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_recv_wr = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_recv_wr wr = {.wr_id = 3}, *bad;
    struct ibv_wc wc;
    MUST(qp && ibv_post_recv(qp, &wr, &bad) == 0);
    SHOULD(ibv_close_device(context) == 0);
    SHOULD(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 3 && wc.status == IBV_WC_WR_FLUSH_ERR);
    SHOULD(ibv_dealloc_pd(pd) == EBUSY && ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0);
    SHOULD(ibv_dealloc_pd(pd) == 0 && ibv_destroy_cq(cq) == 0);
    /* Connections of other contexts continue. */
    SHOULD(receive(&s[1], 1, 0, 4) == 0 &&
           ends(&s[0], piece(&s[0], 0, 4), IBV_WR_SEND, 0, 0) == IBV_WC_SUCCESS &&
           next_completion(&s[1]).wr_id == 1);
    finish(s);
}

/* The peer process: connects, reports that it may be killed, and then idles or repeats Writes
 * and Reads. */
static void peer(uint16_t port, int tell, int works) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = port, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct rdma_conn_param param = {.responder_resources = 16, .initiator_depth = 16};
    struct { uint64_t at; uint32_t key; } theirs;
    struct rdma_cm_event *event;
    struct side a;
    struct rdma_cm_id *id;
    MUST(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
    MUST(rdma_resolve_route(id, 2000) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
    create_objects(&a, id, (struct options){0});
    param.qp_num = a.qp->qp_num;
    MUST(rdma_connect(id, &param) == 0);
    event = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    memcpy(&theirs, event->param.conn.private_data, sizeof(theirs));
    rdma_ack_cm_event(event);
    struct { uint64_t at; uint32_t key; } own = {(uintptr_t)a.memory, a.mr->rkey};
    MUST(write(tell, &own, sizeof(own)) == sizeof(own));
    while (!works)
        pause();
    for (;;) {
        struct ibv_sge sge = piece(&a, 0, ROOM);
        struct ibv_send_wr wr = plain(&sge, works++ % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
        wr.wr.rdma.remote_addr = theirs.at;
        wr.wr.rdma.rkey = theirs.key;
        post_and_wait(&a, wr);
    }
}

/* A peer is killed: idle, while it writes and reads, and while it is written to and read from.
 * All posted requests are flushed, the event arrives, and later requests are flushed too. */
static void killed(void) {
    struct { uint64_t at; uint32_t key; } theirs, own;
    for (int kind = 0; kind < 3; kind++) {
        int ports[2], told[2], status;
        uint16_t port;
        MUST(pipe(ports) == 0 && pipe(told) == 0);
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            close(ports[1]);
            /* Without a port the child cannot connect. */
            if (read(ports[0], &port, sizeof(port)) == sizeof(port))
                peer(port, told[1], kind == 1);
            _exit(1);
        }
        struct rdma_event_channel *channel = rdma_create_event_channel();
        struct rdma_cm_id *listener;
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        MUST(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
        MUST(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 &&
             rdma_listen(listener, 1) == 0);
        port = rdma_get_src_port(listener);
        MUST(write(ports[1], &port, sizeof(port)) == sizeof(port));
        struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        struct side b;
        create_objects(&b, event->id, (struct options){0});
        rdma_ack_cm_event(event);
        own.at = (uintptr_t)b.memory;
        own.key = b.mr->rkey;
        struct rdma_conn_param param = {.responder_resources = 16,
                                        .initiator_depth = 16,
                                        .qp_num = b.qp->qp_num,
                                        .private_data = &own,
                                        .private_data_len = sizeof(own)};
        SHOULD(receive(&b, 1, 0, 4) == 0 && receive(&b, 2, 0, 4) == 0);
        MUST(rdma_accept(b.id, &param) == 0);
        rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
        MUST(read(told[0], &theirs, sizeof(theirs)) == sizeof(theirs));
        int asked = 0;
        struct ibv_sge sge = piece(&b, 0, ROOM);
        for (; kind == 2 && asked < 8; asked++) {
            struct ibv_send_wr wr = plain(&sge, asked % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ),
                               *bad;
            wr.wr.rdma.remote_addr = theirs.at;
            wr.wr.rdma.rkey = theirs.key;
            /* The child is stopped: until it is killed, only requests complete that fit the
             * system's buffers. */
            MUST(asked > 0 || kill(child, SIGSTOP) == 0);
            MUST(ibv_post_send(b.qp, &wr, &bad) == 0);
        }
        MUST(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
        int flushed = 0;
        for (int i = 0; i < 2 + asked; i++) {
            struct ibv_wc wc = next_completion(&b);
            flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
            SHOULD(wc.wr_id == 7 || wc.status == IBV_WC_WR_FLUSH_ERR);
        }
        SHOULD(flushed >= (asked ? 3 : 2));
        SHOULD(receive(&b, 3, 0, 4) == 0 && next_completion(&b).status == IBV_WC_WR_FLUSH_ERR);
        SHOULD(ends(&b, piece(&b, 0, 4), IBV_WR_SEND, 0, 0) == IBV_WC_WR_FLUSH_ERR);
        SHOULD(ibv_destroy_qp(b.qp) == 0 && ibv_destroy_cq(b.cq) == 0 && ibv_dereg_mr(b.mr) == 0);
        SHOULD(ibv_destroy_comp_channel(b.channel) == 0 && ibv_dealloc_pd(b.pd) == 0 &&
               rdma_destroy_id(b.id) == 0);
        SHOULD(rdma_destroy_id(listener) == 0);
        rdma_destroy_event_channel(channel);
        free(b.memory);
        for (int i = 0; i < 2; i++)
            close(ports[i]), close(told[i]);
    }
}

/* Opens descriptors up to the limit. */
static struct rlimit none_left(void) {
    struct rlimit before, none;
    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 3;
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    return before;
}

/* Each call that needs a descriptor fails without one and succeeds with one. Here each call is
 * the first of its kind in its process. */
static void exhausted(void) {
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    int status = -1;
    if (child == 0) {
        struct ibv_device **list = ibv_get_device_list(NULL);
        MUST(list && list[0]);
        struct ibv_context *context = ibv_open_device(list[0]);
        MUST(context);
        struct rlimit before = none_left();
        SHOULD(ibv_get_device_list(NULL) == NULL && errno == EMFILE);
        SHOULD(ibv_open_device(list[0]) == NULL && errno == EMFILE);
        SHOULD(ibv_alloc_pd(context) == NULL && errno == EMFILE);
        SHOULD(ibv_create_cq(context, 1, NULL, NULL, 0) == NULL && errno == EMFILE);
        SHOULD(ibv_create_comp_channel(context) == NULL && errno == EMFILE);
        MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
        struct ibv_pd *pd = ibv_alloc_pd(context);
        MUST(pd);
        none_left();
        /* Calls that need no descriptor. */
        struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
        struct ibv_qp_init_attr init = {.send_cq = cq,
                                        .recv_cq = cq,
                                        .cap = {.max_send_wr = 1, .max_recv_wr = 1},
                                        .qp_type = IBV_QPT_RC};
        struct ibv_qp *qp = cq ? ibv_create_qp(pd, &init) : NULL;
        SHOULD(cq && qp && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
        SHOULD(ibv_create_comp_channel(context) == NULL && errno == EMFILE);
        MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
        SHOULD(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
        ibv_free_device_list(list);
        struct side s[2];
        connect_sides(s, (struct options){0});
        finish(s);
        fflush(stdout);
        _exit(wrong);
    }
    MUST(waitpid(child, &status, 0) == child);
    SHOULD(status == 0);
}

static long used_ms(void) {
    struct rusage used;
    MUST(getrusage(RUSAGE_SELF, &used) == 0);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

/* A connection request arrives when the listener's process has no descriptor left: it waits for
 * one without using the processor. */
static void asked_without_descriptors(void) {
    int ports[2], told[2], status;
    struct { uint64_t at; uint32_t key; } theirs, own = {0};
    uint16_t port;
    MUST(pipe(ports) == 0 && pipe(told) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        if (read(ports[0], &port, sizeof(port)) == sizeof(port))
            peer(port, told[1], 0);
        _exit(1);
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    MUST(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 1) == 0);
    port = rdma_get_src_port(listener);
    struct rlimit before = none_left();
    long used = used_ms();
    MUST(write(ports[1], &port, sizeof(port)) == sizeof(port));
    struct pollfd waits = {.fd = channel->fd, .events = POLLIN};
    SHOULD(poll(&waits, 1, 1000) == 0);
    SHOULD(used_ms() - used < 300);
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct side b;
    create_objects(&b, event->id, (struct options){0});
    rdma_ack_cm_event(event);
    struct rdma_conn_param param = {
        .qp_num = b.qp->qp_num, .private_data = &own, .private_data_len = sizeof(own)};
    MUST(rdma_accept(b.id, &param) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    MUST(read(told[0], &theirs, sizeof(theirs)) == sizeof(theirs));
    MUST(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
    SHOULD(ibv_destroy_qp(b.qp) == 0 && ibv_destroy_cq(b.cq) == 0 && ibv_dereg_mr(b.mr) == 0);
    SHOULD(ibv_destroy_comp_channel(b.channel) == 0 && ibv_dealloc_pd(b.pd) == 0 &&
           rdma_destroy_id(b.id) == 0);
    SHOULD(rdma_destroy_id(listener) == 0);
    rdma_destroy_event_channel(channel);
    free(b.memory);
}

/* A child destroys all objects of its parent, of every kind. A program that it executes inherits
 * none of their descriptors. */
static void forked(void) {
    struct side s[2];
    connect_sides(s, (struct options){.shared = 1, .extended = 1});
    struct side *a = &s[0], *b = &s[1];
    struct ibv_context *context = ibv_open_device(a->id->verbs->device);
    struct ibv_mw *window = ibv_alloc_mw(b->pd, IBV_MW_TYPE_2);
    MUST(context && window);
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        struct ibv_async_event event;
        struct ibv_cq *cq;
        struct ibv_wc wc;
        void *user;
        struct ibv_srq_attr limit = {.srq_limit = 1};
        struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
        struct ibv_poll_cq_attr attr = {0};
        SHOULD(ibv_poll_cq(b->cq, 1, &wc) == 0 &&
               ibv_start_poll((struct ibv_cq_ex *)b->cq, &attr) == ENOENT);
        SHOULD(receive(b, 1, 0, 4) == EINVAL && ibv_resize_cq(b->cq, 8) == EINVAL &&
               ibv_modify_srq(b->srq, &limit, IBV_SRQ_LIMIT) == EINVAL);
        SHOULD(ibv_modify_qp(b->qp, &error, IBV_QP_STATE) == EINVAL);
        SHOULD(ibv_get_cq_event(b->channel, &cq, &user) == -1 && errno == EINVAL);
        SHOULD(ibv_get_async_event(b->id->verbs, &event) == -1 && errno == EINVAL);
        SHOULD(ibv_dealloc_mw(window) == 0 && ibv_close_device(context) == 0);
        finish(s);
        fflush(stdout);
        if (wrong)
            _exit(1);
        execl("/bin/sh", "sh", "-c",
              "for fd in /proc/$$/fd/*; do [ ${fd##*/} -le 2 ] || readlink $fd; done | grep -c "
              "'^anon_inode\\|^socket' | grep -qx 0",
              NULL);
        _exit(1);
    }
    MUST(waitpid(child, &status, 0) == child);
    SHOULD(status == 0);
    SHOULD(receive(b, 1, 0, 4) == 0 &&
           ends(a, piece(a, 0, 4), IBV_WR_SEND, 0, 0) == IBV_WC_SUCCESS &&
           next_completion(b).wr_id == 1);
    SHOULD(ibv_dealloc_mw(window) == 0 && ibv_close_device(context) == 0);
    finish(s);
}

int main(int count, char **words) {
    const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        /* Tests that fork run first, before this process has objects of its own. */
        {"exhausted", exhausted}, {"killed", killed}, {"asked", asked_without_descriptors},
        {"nothing", nothing}, {"keys", keys_of_the_peer}, {"own", own_keys}, {"atomics", atomics},
        {"overfull", overfull}, {"busy", busy}, {"closed", closed}, {"forked", forked},
    };
    alarm(120);
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        if (count < 2 || strcmp(words[1], parts[i].name) == 0)
            parts[i].run();
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
