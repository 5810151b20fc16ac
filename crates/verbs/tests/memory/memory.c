/* Registers memory, then unmaps it, protects it or truncates its file. Prints whatever fails. */
#include "memory.h"

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
    char *at = pages(PROT_READ | PROT_WRITE), *readable = pages(PROT_READ),
         *holed = pages(PROT_READ | PROT_WRITE);
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
        ibv_reg_mr(pd, at, LENGTH,
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB | IBV_ACCESS_ZERO_BASED),
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

static void changing(void) {
    struct side a, b;
    connect_both(&a, &b);
    struct ibv_mr *mr = b.mr;
    char *other = pages(PROT_READ | PROT_WRITE), *readable = pages(PROT_READ);
    uint32_t key = mr->rkey;
    memset(other, 7, LENGTH);
    SHOULD(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, PAGE, 0) ==
           IBV_REREG_MR_ERR_INPUT);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 0, 0) ==
           IBV_REREG_MR_ERR_INPUT);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, PAGE, ALL) ==
           IBV_REREG_MR_ERR_INPUT);
    SHOULD(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) ==
           IBV_REREG_MR_ERR_INPUT);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, readable, PAGE, 0) ==
               IBV_REREG_MR_ERR_CMD &&
           errno == EFAULT);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) ==
           IBV_REREG_MR_ERR_CMD);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD);
    SHOULD(mr->rkey == key && mr->addr == b.at && mr->pd == b.pd);
    /* Other rights apply under the same key. */
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                        ALL & ~IBV_ACCESS_REMOTE_WRITE) == 0 &&
           mr->rkey == key);
    post(&a, &b, IBV_WR_RDMA_READ, 0, 8);
    SHOULD(next_status(&a) == IBV_WC_SUCCESS);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 3 * PAGE, 0) == 0);
    SHOULD(mr->addr == other && mr->length == 3 * PAGE && mr->lkey == mr->rkey);
    /* The peer reads the new memory under the new key. */
    char *old = b.at;
    b.at = other;
    post(&a, &b, IBV_WR_RDMA_READ, 2 * PAGE, PAGE);
    SHOULD(next_status(&a) == IBV_WC_SUCCESS && a.at[2 * PAGE] == 7 && a.at[3 * PAGE - 1] == 7);
    /* In another domain the queue pair cannot use it. */
    struct ibv_pd *pd = ibv_alloc_pd(a.id->verbs);
    SHOULD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0,
                        IBV_ACCESS_REMOTE_READ) == 0);
    SHOULD(mr->pd == pd && ibv_dealloc_pd(pd) == EBUSY);
    post(&a, &b, IBV_WR_RDMA_READ, 0, 8);
    SHOULD(next_status(&a) == IBV_WC_REM_ACCESS_ERR);
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
    MUST(mmap(side->at, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
         side->at);
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
    *theirs = next_status(&b);
    expect_event(client_events, RDMA_CM_EVENT_DISCONNECTED);
    expect_event(server_events, RDMA_CM_EVENT_DISCONNECTED);
    int status = next_status(&a);
    destroy(&a);
    destroy(&b);
    return status;
}

static void gone(void) {
    int theirs;
    for (enum how how = 0; how < WAYS; how++) {
        if (how != READ_ONLY) {
            SHOULD(end(how, 1, IBV_WR_RDMA_WRITE, &theirs) == IBV_WC_LOC_PROT_ERR &&
                   theirs == IBV_WC_WR_FLUSH_ERR);
            SHOULD(end(how, 1, IBV_WR_SEND, &theirs) == IBV_WC_LOC_PROT_ERR &&
                   theirs == IBV_WC_WR_FLUSH_ERR);
            SHOULD(end(how, 0, IBV_WR_RDMA_READ, &theirs) == IBV_WC_REM_ACCESS_ERR &&
                   theirs == IBV_WC_WR_FLUSH_ERR);
        }
        SHOULD(end(how, 1, IBV_WR_RDMA_READ, &theirs) == IBV_WC_LOC_PROT_ERR &&
               theirs == IBV_WC_WR_FLUSH_ERR);
        SHOULD(end(how, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, &theirs) == IBV_WC_REM_ACCESS_ERR &&
               theirs == IBV_WC_WR_FLUSH_ERR);
        SHOULD(end(how, 0, IBV_WR_RDMA_WRITE, &theirs) == IBV_WC_REM_ACCESS_ERR &&
               theirs == IBV_WC_WR_FLUSH_ERR);
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
            status = next_status(&a);
        }
        SHOULD(status == IBV_WC_REM_ACCESS_ERR);
        pthread_join(thread, NULL);
        expect_event(client_events, RDMA_CM_EVENT_DISCONNECTED);
        expect_event(server_events, RDMA_CM_EVENT_DISCONNECTED);
        destroy(&a);
        destroy(&b);
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
        SHOULD(ibv_rereg_mr(a.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) ==
               IBV_REREG_MR_ERR_CMD);
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
    SHOULD(next_status(&a) == IBV_WC_SUCCESS);
    post(&a, &b, IBV_WR_RDMA_READ, 0, LENGTH);
    SHOULD(next_status(&a) == IBV_WC_SUCCESS && b.at[LENGTH - 1] == 5);
    disconnect_both(&a, &b);
}

int main(int count, char **words) {
    const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"registering", registering}, {"changing", changing}, {"gone", gone},
        {"while", while_written},     {"handlers", handlers}, {"fork", forking},
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
