/* Two processes, and two more that keep the processors busy. The first one writes to the second,
 * which sleeps, and reads the memory that both share as soon as the Write completes. Then it
 * writes without the right.
 *
 *   placed COUNT      prints the number of late Writes and the status of the rejected one
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { SIZE = 4096, WORDS = SIZE / sizeof(uint64_t), BUSY = 2 };

#define MUST(what) \
    do { \
        if (!(what)) { \
            perror(#what); \
            exit(1); \
        } \
    } while (0)

struct place {
    uint64_t address;
    uint32_t key;
};

static struct ibv_qp_init_attr attributes(void) {
    return (struct ibv_qp_init_attr){.cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
}

static struct rdma_cm_id *endpoint(const char *port, int flags) {
    char text[8];
    snprintf(text, sizeof(text), "%s", port);
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = flags}, *found;
    struct ibv_qp_init_attr attr = attributes();
    struct rdma_cm_id *id;
    MUST(rdma_getaddrinfo("127.0.0.1", text, &hints, &found) == 0 &&
         rdma_create_ep(&id, found, NULL, &attr) == 0);
    rdma_freeaddrinfo(found);
    return id;
}

/* The second process: prints its port, accepts, and sleeps until `ends` becomes readable. */
static void target(uint64_t *shared, int says, int ends) {
    char port[8] = "";
    struct rdma_cm_id *id, *listener = endpoint("0", RAI_PASSIVE);
    struct ibv_mr *mr;
    MUST(rdma_listen(listener, 1) == 0);
    snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
    MUST(write(says, port, sizeof(port)) == sizeof(port) && rdma_get_request(listener, &id) == 0);
    MUST((mr = ibv_reg_mr(id->pd, shared, SIZE,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
    struct place own = {(uintptr_t)shared, mr->rkey};
    struct rdma_conn_param param = {.private_data = &own, .private_data_len = sizeof(own)};
    MUST(rdma_accept(id, &param) == 0);
    MUST(read(ends, port, 1) == 1);
    _exit(0);
}

static enum ibv_wc_status write_to(struct rdma_cm_id *id, struct ibv_mr *mr, void *from,
                                   struct place to) {
    struct ibv_wc wc;
    int count;
    MUST(rdma_post_write(id, NULL, from, SIZE, mr, IBV_SEND_SIGNALED, to.address, to.key) == 0);
    while ((count = ibv_poll_cq(id->send_cq, 1, &wc)) == 0)
        ;
    MUST(count == 1);
    return wc.status;
}

int main(int count, char **words) {
    int writes = count == 2 ? atoi(words[1]) : 0, port[2], end[2], late = 0;
    pid_t busy[BUSY], other;
    if (writes < 1) {
        fprintf(stderr, "placed COUNT\n");
        return 2;
    }
    alarm(60);
    uint64_t *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED && pipe(port) == 0 && pipe(end) == 0);
    for (int i = 0; i < BUSY; i++) {
        MUST((busy[i] = fork()) >= 0);
        if (busy[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                __asm__ volatile("");
        }
    }
    MUST((other = fork()) >= 0);
    if (other == 0) {
        alarm(60);
        target(shared, port[1], end[0]);
    }
    char text[8];
    static uint64_t own[WORDS];
    struct place theirs;
    struct ibv_mr *mr;
    MUST(read(port[0], text, sizeof(text)) == sizeof(text));
    struct rdma_cm_id *id = endpoint(text, 0);
    struct rdma_conn_param param = {0};
    MUST((mr = ibv_reg_mr(id->pd, own, SIZE, IBV_ACCESS_LOCAL_WRITE)) != NULL &&
         rdma_connect(id, &param) == 0);
    memcpy(&theirs, id->event->param.conn.private_data, sizeof(theirs));
    for (uint64_t n = 1; n <= (uint64_t)writes; n++) {
        own[0] = own[WORDS - 1] = n;
        MUST(write_to(id, mr, own, theirs) == IBV_WC_SUCCESS);
        late +=
            ((volatile uint64_t *)shared)[0] != n || ((volatile uint64_t *)shared)[WORDS - 1] != n;
    }
    theirs.address += 1;
    printf("%d late, refused: %s\n", late, ibv_wc_status_str(write_to(id, mr, own, theirs)));
    int status;
    MUST(write(end[1], "", 1) == 1);
    MUST(waitpid(other, &status, 0) == other && status == 0);
    for (int i = 0; i < BUSY; i++)
        MUST(kill(busy[i], SIGKILL) == 0 && waitpid(busy[i], &status, 0) == busy[i]);
    return 0;
}
