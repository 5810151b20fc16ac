/* Two processes that write to each other and read only their own memory meanwhile, so the
 * engine's thread must place the data. The floor is the same exchange over a raw blocking TCP
 * socket, in turns, each side on a processor of its own.
 *
 *   spin ROUNDS COUNT      each round prints the median and the mean of the floor and of the
 *                          spinning pair, in µs one way
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* A round's requests fit a queue, so their completions can wait for its end. */
enum { SIZE = 64, MOST = 8192 };

#define MUST(what) \
    do { \
        if (!(what)) { \
            perror(#what); \
            exit(1); \
        } \
    } while (0)

/* The memory that a peer may write. */
struct place {
    uint64_t address;
    uint32_t key;
};

/* One process's end: a socket, a connection, a send buffer and behind it a receive buffer. */
struct end {
    int asks, socket;
    struct rdma_cm_id *id;
    struct ibv_mr *mr;
    struct place theirs;
    uint8_t memory[2 * SIZE];
};

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* A TCP socket that listens on loopback. */
static int listener(struct sockaddr_in *at) {
    socklen_t length = sizeof(*at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    MUST(fd >= 0 && bind(fd, (struct sockaddr *)at, length) == 0 && listen(fd, 1) == 0);
    MUST(getsockname(fd, (struct sockaddr *)at, &length) == 0);
    return fd;
}

static void connect_both(struct end *end, int listening, struct sockaddr_in at) {
    int one = 1;
    char port[8] = "0";
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP,
                                  .ai_flags = end->asks ? 0 : RAI_PASSIVE},
                         *found;
    struct ibv_qp_init_attr attr = {.cap = {MOST + 1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct rdma_cm_id *id;
    if (end->asks) {
        MUST((end->socket = socket(AF_INET, SOCK_STREAM, 0)) >= 0 &&
             connect(end->socket, (struct sockaddr *)&at, sizeof(at)) == 0);
        MUST(recv(end->socket, port, sizeof(port), MSG_WAITALL) == sizeof(port));
    } else {
        MUST((end->socket = accept(listening, NULL, NULL)) >= 0);
    }
    MUST(setsockopt(end->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
    MUST(rdma_getaddrinfo("127.0.0.1", port, &hints, &found) == 0 &&
         rdma_create_ep(&id, found, NULL, &attr) == 0);
    rdma_freeaddrinfo(found);
    if (!end->asks) {
        struct rdma_cm_id *waits = id;
        MUST(rdma_listen(waits, 1) == 0);
        snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(waits)));
        MUST(write(end->socket, port, sizeof(port)) == sizeof(port) &&
             rdma_get_request(waits, &id) == 0);
    }
    MUST((end->mr = ibv_reg_mr(id->pd, end->memory, sizeof(end->memory),
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
    struct place own = {(uintptr_t)end->memory + SIZE, end->mr->rkey};
    struct rdma_conn_param param = {.private_data = &own, .private_data_len = sizeof(own)};
    if (!end->asks)
        memcpy(&end->theirs, id->event->param.conn.private_data, sizeof(own));
    MUST((end->asks ? rdma_connect(id, &param) : rdma_accept(id, &param)) == 0);
    if (end->asks)
        memcpy(&end->theirs, id->event->param.conn.private_data, sizeof(own));
    end->id = id;
}

static void send_raw(struct end *end, uint8_t mark) {
    uint8_t octets[SIZE] = {mark};
    MUST(write(end->socket, octets, SIZE) == SIZE);
}

static void await_raw(struct end *end, uint8_t mark) {
    uint8_t octets[SIZE];
    MUST(recv(end->socket, octets, SIZE, MSG_WAITALL) == SIZE && octets[0] == mark);
}

static void send_write(struct end *end, uint8_t mark) {
    end->memory[SIZE - 1] = mark;
    struct ibv_sge sge = {(uintptr_t)end->memory, SIZE, end->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .wr.rdma = {end->theirs.address, end->theirs.key}},
                       *bad;
    MUST(ibv_post_send(end->id->qp, &wr, &bad) == 0);
}

static void await_write(struct end *end, uint8_t mark) {
    volatile uint8_t *last = &end->memory[2 * SIZE - 1];
    while (*last != mark)
        ;
}

static int order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Runs `count` exchanges; the connecting side prints half of their median and mean. */
static void exchange(struct end *end, int count, void (*send)(struct end *, uint8_t),
                     void (*await)(struct end *, uint8_t)) {
    static uint64_t took[MOST];
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        uint8_t mark = (uint8_t)(i % 255 + 1);
        uint64_t begin = now();
        if (end->asks)
            send(end, mark);
        await(end, mark);
        if (!end->asks)
            send(end, mark);
        took[i] = now() - begin;
        sum += took[i];
    }
    if (!end->asks)
        return;
    qsort(took, (size_t)count, sizeof(*took), order);
    printf("%.2f %.2f ", (double)took[count / 2] / 2e3, (double)sum / 2e3 / count);
}

/* Frees the queue's slots: when a last signalled request completes, those before it have
 * completed. */
static void drain(struct end *end) {
    struct ibv_wc wc;
    MUST(rdma_post_write(end->id, NULL, end->memory, 0, end->mr, IBV_SEND_SIGNALED,
                         end->theirs.address, end->theirs.key) == 0);
    MUST(rdma_get_send_comp(end->id, &wc) == 1);
    MUST(wc.status == IBV_WC_SUCCESS);
}

/* Pins the process to a processor, or to any if `core` is negative. */
static void run_on(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (core < 0 || i == core)
            CPU_SET(i, &set);
    MUST(sched_setaffinity(0, sizeof(set), &set) == 0);
}

int main(int count, char **words) {
    struct sockaddr_in at;
    int rounds = count == 3 ? atoi(words[1]) : 0, each = count == 3 ? atoi(words[2]) : 0, status;
    if (rounds < 1 || each < 1 || each > MOST) {
        fprintf(stderr, "spin ROUNDS COUNT, which is %d at most\n", MOST);
        return 2;
    }
    int listening = listener(&at);
    /* A process whose peer is gone ends. */
    alarm(60);
    pid_t other = fork();
    MUST(other >= 0);
    if (other == 0)
        alarm(60);
    static struct end end;
    end.asks = other != 0;
    connect_both(&end, listening, at);
    for (int round = 0; round < rounds; round++) {
        run_on(end.asks);
        exchange(&end, each, send_raw, await_raw);
        run_on(-1);
        exchange(&end, each, send_write, await_write);
        drain(&end);
        end.memory[2 * SIZE - 1] = 0;
        if (end.asks)
            puts("");
    }
    /* Wait for the other process: ending first would take away its last completion. */
    send_raw(&end, 1);
    await_raw(&end, 1);
    if (other == 0)
        _exit(0);
    MUST(waitpid(other, &status, 0) == other && status == 0);
    return 0;
}
