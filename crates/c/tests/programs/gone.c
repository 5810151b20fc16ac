/* A cluster that ends: gone LOCATOR. The program prints a line when it has written an object, and
 * waits for one until the cluster is gone. */
#include "should.h"

int main(int argc, char **argv)
{
    sprat_options settings = SPRAT_OPTIONS_INIT;
    sprat_client *client;
    sprat_operation *operation;
    sprat_result result;
    uint64_t table;

    if (argc != 2)
        return 2;
    settings.timeout_ms = 300;
    settings.try_timeout_ms = 100;
    MUST(sprat_connect(argv[1], &settings, &client, &error));
    MUST(sprat_set_timeout(client, 20000, &error));
    MUST(sprat_create_table(client, "gone", NULL, &table, &error));
    MUST(sprat_write(client, table, "k", 1, "v", 1, NULL, NULL, &error));
    MUST(sprat_set_timeout(client, 300, &error));
    puts("written");
    fflush(stdout);
    if (getchar() != '\n')
        return 2;
    GIVES(SPRAT_DEADLINE, sprat_read_alloc(client, table, "k", 1, NULL, &result, &error));
    MUST(sprat_start_write(client, table, "k", 1, "w", 1, NULL, &operation, &error));
    GIVES(SPRAT_OK, sprat_wait(operation, -1, &error));
    GIVES(SPRAT_DEADLINE, sprat_take(operation, NULL, &error));
    sprat_release(operation);
    sprat_disconnect(client);
    return ended();
}
