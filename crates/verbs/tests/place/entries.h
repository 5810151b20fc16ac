/* How many entries a folder has, as of /proc/self/fd and /proc/self/task; its own descriptor counts while it is read. */
#include <dirent.h>
#include "should.h"

static inline int entries(const char *folder) {
    int count = 0;
    DIR *all = opendir(folder);
    MUST(all);
    for (struct dirent *entry; (entry = readdir(all));)
        count += entry->d_name[0] != '.';
    closedir(all);
    return count;
}
