/* The number of entries of a directory, such as /proc/self/fd or /proc/self/task. While it is
 * read, its own descriptor counts. */
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
