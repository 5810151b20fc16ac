/* Registers memory, then unmaps it, protects it or truncates its file. Prints whatever fails. */
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
#include "../place/should.h"

#define PAGE 4096UL
#define LENGTH (64 * PAGE)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)

/* Pages at an address that no allocator uses, so that they stay unmapped once they are. */
static char *pages(int rights) {
    static char *next = (char *)0x200000000000;
    char *at = mmap(next, LENGTH, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MUST(at != MAP_FAILED);
    next += 16 * LENGTH;
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

/* Registering fails with this errno. */
static int refused(struct ibv_pd *pd, void *at, size_t length, unsigned access, int expected) {
    errno = 0;
    struct ibv_mr *mr = ibv_reg_mr(pd, at, length, access);
    int found = errno;
    if (mr)
        ibv_dereg_mr(mr);
    return !mr && found == expected;
}

static void registering(void) {
    struct ibv_context *context = device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    char *at = pages(PROT_READ | PROT_WRITE), *readable = pages(PROT_READ), *holed = pages(PROT_READ | PROT_WRITE);
    MUST(pd != NULL && munmap(holed + 3 * PAGE, PAGE) == 0);
    SHOULD(refused(NULL, at, LENGTH, ALL, EINVAL));
    SHOULD(refused(pd, at, 0, ALL, EINVAL));
    SHOULD(refused(pd, at, LENGTH, IBV_ACCESS_REMOTE_WRITE, EINVAL));
    SHOULD(refused(pd, at, LENGTH, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ, EINVAL));
    SHOULD(refused(pd, at, LENGTH, 1 << 12, EINVAL));
    SHOULD(refused(pd, at, LENGTH, IBV_ACCESS_ON_DEMAND | ALL, EOPNOTSUPP));
    SHOULD(refused(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND, EOPNOTSUPP));
    SHOULD(refused(pd, at, SIZE_MAX, ALL, EINVAL));
    SHOULD(refused(pd, NULL, PAGE, ALL, EFAULT));
    SHOULD(refused(pd, (void *)8, 8, 0, EFAULT));
    SHOULD(refused(pd, readable, LENGTH, ALL, EFAULT));
    SHOULD(refused(pd, readable, 1, IBV_ACCESS_LOCAL_WRITE, EFAULT));
    SHOULD(refused(pd, holed, LENGTH, ALL, EFAULT));
    SHOULD(refused(pd, holed + 3 * PAGE - 1, 2, 0, EFAULT));
    SHOULD(refused(pd, "only to be read", 4, IBV_ACCESS_LOCAL_WRITE, EFAULT));
    /* Readable memory may be registered for reading; optional flags are ignored. */
    struct ibv_mr *some[] = {
        ibv_reg_mr(pd, readable, LENGTH, IBV_ACCESS_REMOTE_READ),
        ibv_reg_mr(pd, holed, 3 * PAGE, ALL),
        ibv_reg_mr(pd, at + 17, 1, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING),
        ibv_reg_mr_iova(pd, at + 17, 100, 0x7000011, ALL),
        ibv_reg_mr(pd, at, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB | IBV_ACCESS_ZERO_BASED),
    };
    for (unsigned i = 0; i < sizeof(some) / sizeof(*some); i++) {
        MUST(some[i] != NULL);
        SHOULD(some[i]->pd == pd && some[i]->context == context && some[i]->lkey == some[i]->rkey);
    }
    SHOULD(some[2]->addr == at + 17 && some[2]->length == 1);
    SHOULD(ibv_reg_mr_iova(pd, at + 17, 100, 0x7000000, ALL) == NULL && errno == EINVAL);
    SHOULD(ibv_dealloc_pd(pd) == EBUSY);
    for (unsigned i = 0; i < sizeof(some) / sizeof(*some); i++)
        SHOULD(ibv_dereg_mr(some[i]) == 0);
    SHOULD(ibv_dereg_mr(NULL) == EINVAL);
    SHOULD(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, 0, ALL) == NULL && errno == EOPNOTSUPP);
    SHOULD(ibv_alloc_null_mr(pd) == NULL && errno == EOPNOTSUPP);
    SHOULD(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == EOPNOTSUPP);
    SHOULD(ibv_fork_init() == 0 && ibv_is_fork_initialized() != IBV_FORK_DISABLED);
    SHOULD(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* One of two connected queue pairs of this process. */
struct side {
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    char *at;
};

static struct rdma_event_channel *asks, *hears;

static struct rdma_cm_id *wait_for(struct rdma_event_channel *channel, enum rdma_cm_event_type expected) {
    struct rdma_cm_event *event;
    MUST(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != expected) {
        printf("%s and not %s (%d)\n", rdma_event_str(event->event), rdma_event_str(expected), event->status);
        exit(2);
    }
    struct rdma_cm_id *id = event->id;
    rdma_ack_cm_event(event);
    return id;
}

static void equip(struct side *side, struct rdma_cm_id *id) {
    side->id = id;
    MUST((side->pd = ibv_alloc_pd(id->verbs)) != NULL);
    MUST((side->cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0)) != NULL);
    struct ibv_qp_init_attr init = {.send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC};
    init.cap = (struct ibv_qp_cap){.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2};
    MUST(rdma_create_qp(id, side->pd, &init) == 0);
    side->at = pages(PROT_READ | PROT_WRITE);
    MUST((side->mr = ibv_reg_mr(side->pd, side->at, LENGTH, ALL)) != NULL);
}

static void post(struct side *side, struct side *peer, enum ibv_wr_opcode op, uint64_t offset, uint32_t length) {
    struct ibv_sge sge = {(uintptr_t)side->at + offset, length, side->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = op, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED}, *bad;
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
static int next(struct side *side) {
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
    if (!asks)
        MUST((asks = rdma_create_event_channel()) && (hears = rdma_create_event_channel()));
    struct rdma_cm_id *listener, *id;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(rdma_create_id(hears, &listener, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, 4) == 0);
    address.sin_port = rdma_get_src_port(listener);
    MUST(rdma_create_id(asks, &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000) == 0);
    wait_for(asks, RDMA_CM_EVENT_ADDR_RESOLVED);
    MUST(rdma_resolve_route(id, 5000) == 0);
    wait_for(asks, RDMA_CM_EVENT_ROUTE_RESOLVED);
    equip(a, id);
    struct rdma_conn_param param = {.responder_resources = 8, .initiator_depth = 8, .retry_count = 7};
    MUST(rdma_connect(id, &param) == 0);
    equip(b, wait_for(hears, RDMA_CM_EVENT_CONNECT_REQUEST));
    receive(b, 1);
    MUST(rdma_accept(b->id, &param) == 0);
    wait_for(asks, RDMA_CM_EVENT_ESTABLISHED);
    wait_for(hears, RDMA_CM_EVENT_ESTABLISHED);
    MUST(rdma_destroy_id(listener) == 0);
    /* The accepting side may not send first. */
    post(a, b, IBV_WR_SEND, 0, 1);
    MUST(next(a) == IBV_WC_SUCCESS && next(b) == IBV_WC_SUCCESS);
}

static void give_back(struct side *side) {
    rdma_destroy_qp(side->id);
    SHOULD(ibv_dereg_mr(side->mr) == 0);
    SHOULD(ibv_destroy_cq(side->cq) == 0);
    SHOULD(ibv_dealloc_pd(side->pd) == 0);
    SHOULD(rdma_destroy_id(side->id) == 0);
    munmap(side->at, LENGTH);
}

static void disconnect_both(struct side *a, struct side *b) {
    rdma_disconnect(a->id);
    wait_for(asks, RDMA_CM_EVENT_DISCONNECTED);
    wait_for(hears, RDMA_CM_EVENT_DISCONNECTED);
    give_back(a);
    give_back(b);
}

static void changing(void) {
    struct side a, b;
    connect_both(&a, &b);
    struct ibv_mr *mr = b.mr;
    char *other = pages(PROT_READ | PROT_WRITE), *readable = pages(PROT_READ);
    uint32_t key = mr->rkey;
    memset(other, 7, LENGTH);
    SHOULD(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, PAGE, 0) == IBV_REREG_MR_ERR_INPUT);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, PAGE, ALL) == IBV_REREG_MR_ERR_INPUT);
    SHOULD(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) == IBV_REREG_MR_ERR_INPUT);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, readable, PAGE, 0) == IBV_REREG_MR_ERR_CMD && errno == EFAULT);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_CMD);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD);
    SHOULD(mr->rkey == key && mr->addr == b.at && mr->pd == b.pd);
    /* Other rights apply under the same key. */
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL & ~IBV_ACCESS_REMOTE_WRITE) == 0 && mr->rkey == key);
    post(&a, &b, IBV_WR_RDMA_READ, 0, 8);
    SHOULD(next(&a) == IBV_WC_SUCCESS);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 3 * PAGE, 0) == 0);
    SHOULD(mr->addr == other && mr->length == 3 * PAGE && mr->lkey == mr->rkey);
    /* The peer reads the new memory under the new key. */
    char *old = b.at;
    b.at = other;
    post(&a, &b, IBV_WR_RDMA_READ, 2 * PAGE, PAGE);
    SHOULD(next(&a) == IBV_WC_SUCCESS && a.at[2 * PAGE] == 7 && a.at[3 * PAGE - 1] == 7);
    /* In another domain the queue pair cannot use it. */
    struct ibv_pd *pd = ibv_alloc_pd(a.id->verbs);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0, IBV_ACCESS_REMOTE_READ) == 0);
    SHOULD(mr->pd == pd && ibv_dealloc_pd(pd) == EBUSY);
    post(&a, &b, IBV_WR_RDMA_READ, 0, 8);
    SHOULD(next(&a) == IBV_WC_REM_ACCESS_ERR);
    b.at = old;
    disconnect_both(&a, &b);
    SHOULD(ibv_dealloc_pd(pd) == 0);
}

/* The changes to the memory. */
enum how { UNMAPPED, READ_ONLY, FORBIDDEN, CUT_OFF, WAYS };

/* Puts the latter part of a region's memory into a file that can be truncated. */
static int in_file(struct side *side) {
    int file = memfd_create("sprat-test", MFD_CLOEXEC);
    MUST(file >= 0 && ftruncate(file, LENGTH) == 0);
    MUST(ibv_dereg_mr(side->mr) == 0);
    MUST(mmap(side->at, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == side->at);
    MUST((side->mr = ibv_reg_mr(side->pd, side->at, LENGTH, ALL)) != NULL);
    return file;
}

static void take_away(struct side *side, enum how how, int file) {
    char *from = side->at + 40 * PAGE;
    size_t length = 24 * PAGE;
    switch (how) {
    case UNMAPPED:
        MUST(munmap(from, length) == 0);
        break;
    case READ_ONLY:
        MUST(mprotect(from, length, PROT_READ) == 0);
        break;
    case FORBIDDEN:
        MUST(mprotect(from, length, PROT_NONE) == 0);
        break;
    default:
        MUST(ftruncate(file, 40 * PAGE) == 0 && close(file) == 0);
    }
}

/* The status at the requester whose own memory (`ours`) or whose peer's memory disappears. */
static int end(enum how how, int ours, enum ibv_wr_opcode op, int *theirs) {
    struct side a, b;
    connect_both(&a, &b);
    struct side *loses = ours ? &a : &b;
    int file = how == CUT_OFF ? in_file(loses) : -1;
    receive(&b, LENGTH);
    take_away(loses, how, file);
    int atomic = op == IBV_WR_ATOMIC_FETCH_AND_ADD;
    post(&a, &b, op, atomic ? 50 * PAGE : 0, atomic ? 8 : LENGTH);
    *theirs = next(&b);
    wait_for(asks, RDMA_CM_EVENT_DISCONNECTED);
    wait_for(hears, RDMA_CM_EVENT_DISCONNECTED);
    int status = next(&a);
    give_back(&a);
    give_back(&b);
    return status;
}

static void gone(void) {
    int theirs;
    for (enum how how = 0; how < WAYS; how++) {
        if (how != READ_ONLY) {
            SHOULD(end(how, 1, IBV_WR_RDMA_WRITE, &theirs) == IBV_WC_LOC_PROT_ERR && theirs == IBV_WC_WR_FLUSH_ERR);
            SHOULD(end(how, 1, IBV_WR_SEND, &theirs) == IBV_WC_LOC_PROT_ERR && theirs == IBV_WC_WR_FLUSH_ERR);
            SHOULD(end(how, 0, IBV_WR_RDMA_READ, &theirs) == IBV_WC_REM_ACCESS_ERR && theirs == IBV_WC_WR_FLUSH_ERR);
        }
        SHOULD(end(how, 1, IBV_WR_RDMA_READ, &theirs) == IBV_WC_LOC_PROT_ERR && theirs == IBV_WC_WR_FLUSH_ERR);
        SHOULD(end(how, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, &theirs) == IBV_WC_REM_ACCESS_ERR && theirs == IBV_WC_WR_FLUSH_ERR);
        SHOULD(end(how, 0, IBV_WR_RDMA_WRITE, &theirs) == IBV_WC_REM_ACCESS_ERR && theirs == IBV_WC_WR_FLUSH_ERR);
        /* A Send completes when it is sent. */
        end(how, 0, IBV_WR_SEND, &theirs);
        SHOULD(theirs == IBV_WC_LOC_PROT_ERR);
    }
}

static void *unmaps(void *side) {
    take_away(side, UNMAPPED, -1);
    return NULL;
}

static void while_written(void) {
    for (int round = 0; round < 20; round++) {
        struct side a, b;
        connect_both(&a, &b);
        pthread_t thread;
        int status = IBV_WC_SUCCESS;
        for (int i = 0; i < 400 && status == IBV_WC_SUCCESS; i++) {
            if (i == 5)
                MUST(pthread_create(&thread, NULL, unmaps, &b) == 0);
            post(&a, &b, IBV_WR_RDMA_WRITE, 0, LENGTH);
            status = next(&a);
        }
        SHOULD(status == IBV_WC_REM_ACCESS_ERR);
        pthread_join(thread, NULL);
        wait_for(asks, RDMA_CM_EVENT_DISCONNECTED);
        wait_for(hears, RDMA_CM_EVENT_DISCONNECTED);
        give_back(&a);
        give_back(&b);
    }
}

static sigjmp_buf back;
static volatile sig_atomic_t faults;

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    faults++;
    siglongjmp(back, 1);
}

/* A fault of the program itself reaches its handler. */
static int own_fault(char *at) {
    int before = faults;
    if (sigsetjmp(back, 1) == 0)
        *(volatile char *)at = 1;
    return faults == before + 1;
}

static void handlers(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    char *forbidden = pages(PROT_NONE);
    int theirs;
    /* A handler installed before the library's. */
    MUST(sigaction(SIGSEGV, &action, NULL) == 0);
    SHOULD(own_fault(forbidden));
    SHOULD(end(UNMAPPED, 1, IBV_WR_SEND, &theirs) == IBV_WC_LOC_PROT_ERR);
    SHOULD(own_fault(forbidden) && faults == 2);
    /* A handler that replaces the library's: later copies go by the kernel. */
    MUST(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    SHOULD(end(UNMAPPED, 1, IBV_WR_SEND, &theirs) == IBV_WC_LOC_PROT_ERR);
    SHOULD(end(CUT_OFF, 0, IBV_WR_RDMA_READ, &theirs) == IBV_WC_REM_ACCESS_ERR);
    SHOULD(end(FORBIDDEN, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, &theirs) == IBV_WC_REM_ACCESS_ERR);
    SHOULD(own_fault(forbidden) && faults == 3);
}

static void forking(void) {
    struct side a, b;
    connect_both(&a, &b);
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        /* The parent's objects can be destroyed and do nothing; the child's own ones work. */
        SHOULD(ibv_reg_mr(a.pd, a.at, LENGTH, ALL) == NULL && errno == EINVAL);
        SHOULD(ibv_rereg_mr(a.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD);
        SHOULD(ibv_alloc_mw(a.pd, IBV_MW_TYPE_1) == NULL);
        SHOULD(ibv_dereg_mr(a.mr) == 0 && ibv_dereg_mr(b.mr) == 0);
        struct ibv_pd *pd = ibv_alloc_pd(a.id->verbs);
        SHOULD(pd != NULL);
        struct ibv_mr *mr = ibv_reg_mr(pd, a.at, LENGTH, ALL);
        SHOULD(mr != NULL && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
        fflush(stdout);
        _exit(wrong);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    SHOULD(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* Peers write to the parent's memory, of whose pages the child has copies. */
    memset(a.at, 5, LENGTH);
    post(&a, &b, IBV_WR_RDMA_WRITE, 0, LENGTH);
    SHOULD(next(&a) == IBV_WC_SUCCESS);
    post(&a, &b, IBV_WR_RDMA_READ, 0, LENGTH);
    SHOULD(next(&a) == IBV_WC_SUCCESS && b.at[LENGTH - 1] == 5);
    disconnect_both(&a, &b);
}

/* Writes 8 bytes through a key and returns the outcome. A Read behind the Write shows that it
 * was placed. */
static int through(struct side *side, uint32_t key, char *at, enum ibv_wr_opcode op) {
    struct ibv_sge sge = {(uintptr_t)side->at, 8, side->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)at;
    wr.wr.rdma.rkey = key;
    MUST(ibv_post_send(side->id->qp, &wr, &bad) == 0);
    return next(side);
}

static int posted(struct side *side, struct ibv_send_wr wr) {
    struct ibv_send_wr *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    int refused = ibv_post_send(side->id->qp, &wr, &bad);
    return refused ? -refused : next(side);
}

static void windows(void) {
    struct side a, b;
    connect_both(&a, &b);
    SHOULD(ibv_alloc_mw(b.pd, 3) == NULL && errno == EINVAL);
    struct ibv_mw *one = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
    MUST(one != NULL && two != NULL && one->pd == b.pd && one->type == IBV_MW_TYPE_1 && two->context == b.id->verbs);
    struct ibv_mw_bind bind = {.wr_id = 5, .send_flags = IBV_SEND_SIGNALED};
    bind.bind_info = (struct ibv_mw_bind_info){b.mr, (uintptr_t)b.at + 8, 64, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    uint32_t key = one->rkey;
    SHOULD(ibv_bind_mw(b.id->qp, two, &bind) == EINVAL);
    bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
    SHOULD(ibv_bind_mw(b.id->qp, one, &bind) == EINVAL && one->rkey == key);
    bind.bind_info.mw_access_flags &= ~IBV_ACCESS_ZERO_BASED;
    SHOULD(ibv_bind_mw(b.id->qp, one, &bind) == 0 && next(&b) == IBV_WC_SUCCESS);
    SHOULD(one->rkey == ibv_inc_rkey(key));
    SHOULD(ibv_dereg_mr(b.mr) == EBUSY);
    SHOULD(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) == IBV_REREG_MR_ERR_CMD && errno == EBUSY);
    strcpy(a.at, "sprats!");
    SHOULD(through(&a, one->rkey, b.at + 8, IBV_WR_RDMA_WRITE) == IBV_WC_SUCCESS);
    SHOULD(through(&a, one->rkey, b.at + 8, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS && strcmp(b.at + 8, "sprats!") == 0);
    /* A window that is not bound does not hold its region. */
    bind.bind_info = (struct ibv_mw_bind_info){NULL, 0, 0, 0};
    SHOULD(ibv_bind_mw(b.id->qp, one, &bind) == 0 && next(&b) == IBV_WC_SUCCESS);

    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .bind_mw = {two, ibv_inc_rkey(two->rkey), {b.mr, (uintptr_t)b.at, 64, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ}}};
    SHOULD(posted(&b, wr) == IBV_WC_SUCCESS);
    SHOULD(through(&a, wr.bind_mw.rkey, b.at, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS);
    struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = wr.bind_mw.rkey};
    SHOULD(posted(&b, invalidate) == IBV_WC_SUCCESS);
    /* Bound again under the next key, the window is invalidated by the peer. */
    wr.bind_mw.rkey = ibv_inc_rkey(wr.bind_mw.rkey);
    SHOULD(posted(&b, wr) == IBV_WC_SUCCESS);
    receive(&b, 8);
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = wr.bind_mw.rkey};
    SHOULD(posted(&a, send) == IBV_WC_SUCCESS && next(&b) == IBV_WC_SUCCESS);
    /* Freeing a window also ends its old key. */
    SHOULD(through(&a, wr.bind_mw.rkey, b.at, IBV_WR_RDMA_READ) == IBV_WC_REM_ACCESS_ERR);
    SHOULD(ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0);
    disconnect_both(&a, &b);
}

/* Binds a window of either type to all of b's memory; returns its key. */
static uint32_t bound(struct side *b, struct ibv_mw *window) {
    struct ibv_mw_bind_info info = {b->mr, (uintptr_t)b->at, LENGTH, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    if (window->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = info};
        MUST(ibv_bind_mw(b->id->qp, window, &bind) == 0 && next(b) == IBV_WC_SUCCESS);
        return window->rkey;
    }
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .bind_mw = {window, ibv_inc_rkey(window->rkey), info}};
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
        MUST((window = ibv_alloc_mw(b->pd, opens == WINDOW_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2)) != NULL);
        key = bound(b, window);
        SHOULD(ibv_dereg_mr(b->mr) == EBUSY);
    }
    SHOULD(through(a, key, b->at, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS);
    if (window)
        SHOULD(ibv_dealloc_mw(window) == 0);
    if (opens == REREGISTERED) {
        SHOULD(ibv_rereg_mr(b->mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b->at, LENGTH, 0) == 0 && b->mr->rkey != key);
        return key;
    }
    if (opens == RIGHTS) {
        SHOULD(ibv_rereg_mr(b->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0 && b->mr->rkey == key);
        return key;
    }
    /* No window holds the region any more. */
    SHOULD(ibv_dereg_mr(b->mr) == 0);
    MUST((b->mr = ibv_reg_mr(b->pd, b->at, LENGTH, ALL)) != NULL);
    return key;
}

/* A destroyed object opens nothing: a Write changes nothing, a Read returns nothing, and each
 * ends its connection. Nothing stays busy: `give_back` succeeds. */
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
            wait_for(asks, RDMA_CM_EVENT_DISCONNECTED);
            wait_for(hears, RDMA_CM_EVENT_DISCONNECTED);
            SHOULD(a.at[0] == 9 && b.at[0] == 1);
            give_back(&a);
            give_back(&b);
        }
}

int main(int count, char **words) {
    const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"registering", registering}, {"changing", changing}, {"gone", gone}, {"while", while_written},
        {"handlers", handlers}, {"fork", forking}, {"windows", windows}, {"ends", ends},
    };
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
