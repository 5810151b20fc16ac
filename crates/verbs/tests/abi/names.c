/* Prints the result of each function that names numbers. */
#include <stdio.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

int main(void) {
    for (int n = -1; n <= 30; n++) {
        printf("node type %d: %s\n", n, ibv_node_type_str(n));
        printf("port state %d: %s\n", n, ibv_port_state_str(n));
        printf("event %d: %s\n", n, ibv_event_type_str(n));
        printf("status %d: %s\n", n, ibv_wc_status_str(n));
        printf("connection event %d: %s\n", n, rdma_event_str(n));
    }
    return 0;
}
