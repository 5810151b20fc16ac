// Memory of an object in a RAMCloud master: footprint OBJECTS rpc|object MEGABYTES HASH
//
// Makes a MasterService as RAMCloud's server does with --totalMasterMemory MEGABYTES, --hashTableMemory HASH (such as 10%), no
// replicas and its defaults otherwise, but without a network: the requests are handed to the service. Writes OBJECTS objects of
// 100 B with keys of 30 B, or less if it has no room for 10 s. `rpc` are WRITE requests of one client that acknowledges each reply
// with its next request; the log gets the object and the record that makes the write happen once. `object` hands the objects to
// the object manager without that record, as MultiWrite does. Prints what the log, the hash table and the process grew by.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include "Context.h"
#include "LogMetrics.pb.h"
#include "MasterService.h"
#include "ServerConfig.h"
#include "ServerList.h"

using namespace RAMCloud;

// Bytes of a field of /proc/self/status.
static double status(const char* field) {
    FILE* file = fopen("/proc/self/status", "r");
    char line[256];
    double kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field))) kib = atof(line + strlen(field) + 1);
    if (file) fclose(file);
    return kib * 1024;
}

static std::string keyOf(uint64_t i) {
    char text[32];
    snprintf(text, sizeof text, "%030lu", i);
    return text;
}

int main(int argc, char** argv) try {
    if (argc < 5) return 2;
    const uint64_t objects = strtoull(argv[1], NULL, 10), table = 1;
    const bool rpcs = !strcmp(argv[2], "rpc");
    Logger::get().setLogLevels(WARNING);
    Context context(false);
    ServerConfig config = ServerConfig::forExecution();
    config.services = {WireFormat::MASTER_SERVICE};
    config.setLogAndHashTableSize(argv[3], argv[4]);
    // The defaults of ServerMain.cc.
    config.master.diskExpansionFactor = 2.0;
    config.master.cleanerBalancer = "tombstoneRatio:0.40";
    config.master.cleanerWriteCostThreshold = 8;
    config.master.cleanerThreadCount = 1;
    ServerList servers(&context);
    MasterService& service = *new MasterService(&context, &config);
    service.setServerId(ServerId(1, 0));
    ObjectManager& manager = service.objectManager;
    service.tabletManager.addTablet(table, 0, ~0UL, TabletManager::NORMAL);
    manager.syncChanges();

    const std::string value(100, 'v');
    uint64_t rpc = 0;
    // Writes an object, or throws RetryException if there is no room.
    auto write = [&](const std::string& name) {
        Buffer request, reply;
        Key key(table, name.data(), uint16_t(name.size()));
        if (!rpcs) {
            Object::appendKeysAndValueToBuffer(key, value.data(), 100, &request, true);
            Object object(table, 0, 0, request);
            manager.writeObject(object, NULL, NULL);
            return;
        }
        auto header = request.emplaceAppend<WireFormat::Write::Request>();
        memset(header, 0, sizeof *header);
        header->common.opcode = WireFormat::WRITE;
        header->common.service = WireFormat::MASTER_SERVICE;
        header->tableId = table;
        header->lease = {1, 1UL << 60, 1};
        header->rpcId = rpc + 1;
        header->ackId = rpc;
        Object::appendKeysAndValueToBuffer(key, value.data(), 100, &request, true, &header->length);
        Service::Rpc call(NULL, &request, &reply);
        service.dispatch(WireFormat::WRITE, &call);
        rpc++;
    };
    auto metrics = [&] { ProtoBuf::LogMetrics m; manager.getLog()->getMetrics(m); return m; };
    auto used = [](const ProtoBuf::LogMetrics& m) {
        auto& s = m.seglet_metrics();
        return 65536. * double(s.total_seglets() - s.default_pool_count() - s.emergency_head_pool_count() - s.cleaner_pool_count());
    };

    write("warm");
    const ProtoBuf::LogMetrics before = metrics();
    const double rss = status("VmRSS"), shared = status("RssShmem"), anonymous = status("RssAnon");
    uint64_t written = 0;
    for (int tries = 0; written < objects && tries < 10000;)
        try {
            write(keyOf(written));
            written++, tries = 0;
        } catch (const RetryException&) {
            usleep(1000), tries++;
        }
    const ProtoBuf::LogMetrics after = metrics();
    const double n = double(written), grown = status("VmRSS") - rss;
    const double heap = status("RssAnon") - anonymous, mapped = status("RssShmem") - shared, whole = status("VmRSS");
    const double hash = double(manager.objectMap.getNumBuckets()) * HashTable::bytesPerCacheLine();
    uint64_t missing = 0;
    for (uint64_t i = 0; i < written; i += 1 + written / 1000) {
        std::string name = keyOf(i);
        Key key(table, name.data(), 30);
        Buffer buffer;
        missing += manager.readObject(key, &buffer, NULL, NULL, true) != STATUS_OK || buffer.size() != 100;
    }

    auto& t = after.segment_metrics();
    printf("%s, %s MB, hash table %s: %lu objects%s, %lu of 1,000 missing\n", argv[2], argv[3], argv[4], written,
        written < objects ? " until full" : "", missing);
    for (int i = 0; i < t.total_entry_counts_size(); i++)
        if (double count = double(t.total_entry_counts(i)))
            printf("  in the log: %.0f × %s, %.2f B each with its header\n", count, LogEntryTypeHelpers::toString(LogEntryType(i)),
                double(t.total_entry_lengths(i)) / count);
    printf("  segments in use %.0f MiB, %.2f B an object; hash table %.0f MiB, %.2f B an object\n", used(after) / (1 << 20),
        (used(after) - used(before)) / n, hash / (1 << 20), hash / n);
    printf("  RSS grown by %.2f B an object (mapped %.2f, heap %.2f), whole RSS %.0f MiB\n", grown / n, mapped / n, heap / n,
        whole / (1 << 20));
    printf("  overhead: by growth of RSS %.1f B, by whole RSS %.1f B, by segments in use and hash table %.1f B, by MEGABYTES %.1f B\n",
        grown / n - 130, whole / n - 130, (used(after) - used(before) + hash) / n - 130, atof(argv[3]) * (1 << 20) / n - 130);
    fflush(stdout);
    _exit(0);
} catch (const std::exception& e) {
    fprintf(stderr, "footprint: %s\n", e.what());
    return 1;
}
