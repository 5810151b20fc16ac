/* Reads /sys/class/infiniband under `sprat exec` by each of the calls that programs use. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include "../support/should.h"

#define ROOT "/sys/class/infiniband"
#define LO ROOT "/iw_lo"

static int has(const char *folder, const char *name) {
    int found = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        found += strcmp(entry->d_name, name) == 0;
    if (dir)
        closedir(dir);
    return found == 1;
}

static int says(int file, const char *text) {
    char found[256] = "";
    ssize_t count = read(file, found, sizeof(found) - 1);
    close(file);
    return count == (ssize_t)strlen(text) && strcmp(found, text) == 0;
}

int main(void) {
    char text[PATH_MAX];
    struct stat state, again;
    struct statx more;
    struct dirent **list;
    SHOULD(has(ROOT, "iw_lo") && has(ROOT, ".") && has(LO, "ports") && has(LO "/device/net", "lo"));
    SHOULD(says(open(LO "/node_type", O_RDONLY), "4: RNIC\n"));
    SHOULD(says(openat(AT_FDCWD, LO "/ports/1/state", O_RDONLY | O_CLOEXEC), "4: ACTIVE\n"));
    SHOULD(says(open(LO "/ports/1/gid_attrs/ndevs/0", O_RDONLY), "lo\n"));
    SHOULD(says(open("/sys/class/infiniband_verbs/iw_lo/ibdev", O_RDONLY), "iw_lo\n"));
    FILE *file = fopen(LO "/ports/1/gids/0", "r");
    SHOULD(file && fgets(text, sizeof(text), file) &&
           strcmp(text, "0000:0000:0000:0000:0000:ffff:7f00:0001\n") == 0);
    SHOULD(file && fclose(file) == 0);
    NONE(fopen(LO "/node_type", "w"), EACCES);
    FAILS(open(LO "/node_type", O_RDWR), EACCES);
    FAILS(open(LO "/ports", O_RDONLY), EISDIR);
    FAILS(open(LO "/nothing", O_RDONLY), ENOENT);
    NONE(opendir(LO "/node_type"), ENOTDIR);
    NONE(opendir(ROOT "/mlx5_0"), ENOENT);
    SHOULD(stat(LO, &state) == 0 && S_ISDIR(state.st_mode) && lstat(LO, &again) == 0 &&
           again.st_ino == state.st_ino);
    SHOULD(stat(LO "/fw_ver", &state) == 0 && S_ISREG(state.st_mode));
    SHOULD(statx(AT_FDCWD, LO "/fw_ver", 0, STATX_MODE, &more) == 0 && S_ISREG(more.stx_mode));
    SHOULD(fstatat(AT_FDCWD, LO "/fw_ver", &state, 0) == 0 && S_ISREG(state.st_mode));
    SHOULD(access(LO "/fw_ver", R_OK) == 0 && access(LO, X_OK) == 0);
    FAILS(access(LO "/fw_ver", W_OK), EACCES);
    FAILS(access(LO "/no", F_OK), ENOENT);
    /* The link leads to the kernel's directory. */
    SHOULD(lstat(LO "/device/net/lo", &state) == 0 && S_ISLNK(state.st_mode));
    SHOULD(stat(LO "/device/net/lo", &state) == 0 && S_ISDIR(state.st_mode));
    SHOULD(readlink(LO "/device/net/lo", text, sizeof(text)) == (ssize_t)strlen("/sys/class/net/"
                                                                                "lo"));
    FAILS(readlink(LO "/device", text, sizeof(text)), EINVAL);
    SHOULD(access(LO "/device/net/lo/address", R_OK) == 0 && has(LO "/device/net/lo", "address"));
    SHOULD(realpath(LO "/device", text) && strcmp(text, LO "/device") == 0);
    int count = scandir(LO "/ports/1/gid_attrs", &list, NULL, alphasort);
    SHOULD(count == 4 && strcmp(list[2]->d_name, "ndevs") == 0);
    /* The kernel serves all other paths. */
    SHOULD(stat("/sys/class/net/lo", &state) == 0 && access("/sys/class/infinibands", F_OK) == -1 &&
           has("/sys/class", "net"));
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
