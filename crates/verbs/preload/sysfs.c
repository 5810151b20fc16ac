/* The library that `sprat exec` preloads: it presents our devices below /sys/class/infiniband.
 *
 *   open, fopen   ─► a file in memory with the text
 *   opendir       ─► a list of names for readdir
 *   stat, access  ─► the attributes of a sysfs file or directory
 *   readlink      ─► the target of a link
 *
 * libibverbs.so.1 returns the object at a path (`sprat_sysfs`); it is loaded when a program asks
 * for the first served path. All other paths go to the C library unchanged, at the cost of one
 * comparison.
 *
 * Invariant: nothing is left behind, since files lie in memory; errno is the C library's.
 *
 * Not here: descriptors of directories (open with O_DIRECTORY, fts), paths relative to a
 * descriptor, programs that make system calls without the C library (Go, static ones).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define SERVED "/sys/class/infiniband"
/* The longest content of a path: the names of some hundred devices. */
#define ROOM 16384
#define SHOWN __attribute__((visibility("default")))

typedef int answers(const char *, char *, size_t, size_t *);

/* The C library's function of this name. */
#define BEHIND(name) \
    static __typeof__(&name) behind; \
    if (!behind) \
        behind = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

struct found {
    int kind; /* 0, or a kind that sprat_sysfs returns */
    size_t length;
    char text[ROOM + 1];
};

static int is_served(const char *path) {
    return path && strncmp(path, SERVED, sizeof(SERVED) - 1) == 0;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static answers *ask;

static void find_library(void) {
    void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library)
        ask = (answers *)dlsym(library, "sprat_sysfs");
}

/* Returns the object at a served path; null if libibverbs is not Sprat's. */
static struct found *look(const char *path) {
    if (!is_served(path))
        return NULL;
    int before = errno;
    pthread_once(&once, find_library);
    struct found *found = ask ? malloc(sizeof(*found)) : NULL;
    if (found) {
        found->length = 0;
        found->kind = ask(path, found->text, ROOM, &found->length);
        found->text[found->length] = 0;
    }
    errno = before;
    return found;
}

/* Returns the path that replaces a path behind a link, or a link that is followed; otherwise the
 * caller's own. Frees `found` if no object is served. */
static const char *passed(const char *path, struct found **found, int follows) {
    struct found *at = *found;
    if (!at)
        return path;
    if (at->kind == 'r' || (at->kind == 'l' && follows))
        return at->text;
    return NULL;
}

static int absent(int error) {
    errno = error;
    return -1;
}

/* ---- files ---- */

static int open_found(struct found *found, int flags) {
    if (found->kind == 0)
        return absent(ENOENT);
    if (found->kind == 'l')
        return absent(ELOOP);
    if (found->kind == 'd')
        return absent(flags & O_DIRECTORY ? EOPNOTSUPP : EISDIR);
    if ((flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC))
        return absent(EACCES);
    if (flags & O_DIRECTORY)
        return absent(ENOTDIR);
    int file = memfd_create("sprat-sysfs", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    if (file < 0)
        return -1;
    if (write(file, found->text, found->length) != (ssize_t)found->length ||
        lseek(file, 0, SEEK_SET) != 0) {
        close(file);
        return absent(ENOMEM);
    }
    return file;
}

#define OPEN(name) \
    SHOWN int name(const char *path, int flags, ...) { \
        BEHIND(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        struct found *found = look(path); \
        const char *real = passed(path, &found, !(flags & O_NOFOLLOW)); \
        int file = real ? behind(real, flags, mode) : open_found(found, flags); \
        free(found); \
        return file; \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    SHOWN int name(int at, const char *path, int flags, ...) { \
        BEHIND(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        struct found *found = look(path); \
        const char *real = passed(path, &found, !(flags & O_NOFOLLOW)); \
        int file = real ? behind(at, real, flags, mode) : open_found(found, flags); \
        free(found); \
        return file; \
    }
OPENAT(openat)
OPENAT(openat64)

/* The functions that fortified programs call. */
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
#define FORTIFIED(name, plain, parameters, ...) \
    SHOWN int name parameters { \
        BEHIND(name); \
        return is_served(path) ? plain(__VA_ARGS__) : behind(__VA_ARGS__); \
    }
FORTIFIED(__open_2, open, (const char *path, int flags), path, flags)
FORTIFIED(__open64_2, open64, (const char *path, int flags), path, flags)
FORTIFIED(__openat_2, openat, (int at, const char *path, int flags), at, path, flags)
FORTIFIED(__openat64_2, openat64, (int at, const char *path, int flags), at, path, flags)

#define FOPEN(name) \
    SHOWN FILE *name(const char *path, const char *mode) { \
        BEHIND(name); \
        struct found *found = look(path); \
        const char *real = passed(path, &found, 1); \
        FILE *stream = NULL; \
        if (real) { \
            stream = behind(real, mode); \
        } else { \
            int writes = mode[0] != 'r' || strchr(mode, '+') != NULL; \
            int file = open_found(found, (writes ? O_RDWR : O_RDONLY) | \
                                             (strchr(mode, 'e') ? O_CLOEXEC : 0)); \
            stream = file < 0 ? NULL : fdopen(file, mode); \
        } \
        free(found); \
        return stream; \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* ---- the attributes of files and directories ---- */

static mode_t mode_of(const struct found *found) {
    switch (found->kind) {
    case 'd':
        return S_IFDIR | 0755;
    case 'l':
        return S_IFLNK | 0777;
    default:
        return S_IFREG | 0444;
    }
}

/* The same path has the same number, so that programs can compare them. */
static ino_t number_of(const char *path) {
    ino_t number = 5381;
    for (; *path; path++)
        number = number * 33 + (unsigned char)*path;
    return number | 1;
}

#define STATED(type, name) \
    static int name(const struct found *found, const char *path, struct type *to) { \
        if (found->kind == 0) \
            return absent(ENOENT); \
        memset(to, 0, sizeof(*to)); \
        to->st_mode = mode_of(found); \
        to->st_nlink = found->kind == 'd' ? 2 : 1; \
        to->st_ino = number_of(path); \
        to->st_size = found->kind == 'd' ? 0 : 4096; \
        to->st_blksize = 4096; \
        return 0; \
    }
STATED(stat, state)
STATED(stat64, state64)

/* `follows`: the function follows links. */
#define STAT(name, type, fill, follows, parameters, before, after) \
    SHOWN int name parameters { \
        BEHIND(name); \
        struct found *found = look(path); \
        const char *real = passed(path, &found, follows); \
        int result = real ? behind(before real after, to) : fill(found, path, to); \
        free(found); \
        return result; \
    }
#define NONE
#define COMMA ,
STAT(stat, stat, state, 1, (const char *path, struct stat *to), NONE, NONE)
STAT(lstat, stat, state, 0, (const char *path, struct stat *to), NONE, NONE)
STAT(stat64, stat64, state64, 1, (const char *path, struct stat64 *to), NONE, NONE)
STAT(lstat64, stat64, state64, 0, (const char *path, struct stat64 *to), NONE, NONE)
int __xstat(int, const char *, struct stat *);
int __lxstat(int, const char *, struct stat *);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat64(int, const char *, struct stat64 *);
STAT(__xstat, stat, state, 1, (int version, const char *path, struct stat *to), version COMMA, NONE)
STAT(__lxstat, stat, state, 0, (int version, const char *path, struct stat *to), version COMMA,
     NONE)
STAT(__xstat64, stat64, state64, 1, (int version, const char *path, struct stat64 *to),
     version COMMA, NONE)
STAT(__lxstat64, stat64, state64, 0, (int version, const char *path, struct stat64 *to),
     version COMMA, NONE)

#define STATAT(name, type, fill) \
    SHOWN int name(int at, const char *path, struct type *to, int flags) { \
        BEHIND(name); \
        struct found *found = look(path); \
        const char *real = passed(path, &found, !(flags & AT_SYMLINK_NOFOLLOW)); \
        int result = real ? behind(at, real, to, flags) : fill(found, path, to); \
        free(found); \
        return result; \
    }
STATAT(fstatat, stat, state)
STATAT(fstatat64, stat64, state64)

SHOWN int statx(int at, const char *path, int flags, unsigned mask, struct statx *to) {
    BEHIND(statx);
    struct found *found = look(path);
    const char *real = passed(path, &found, !(flags & AT_SYMLINK_NOFOLLOW));
    int result = 0;
    if (real) {
        result = behind(at, real, flags, mask, to);
    } else if (found->kind == 0) {
        result = absent(ENOENT);
    } else {
        memset(to, 0, sizeof(*to));
        to->stx_mask = STATX_BASIC_STATS;
        to->stx_mode = mode_of(found);
        to->stx_nlink = found->kind == 'd' ? 2 : 1;
        to->stx_ino = number_of(path);
        to->stx_size = found->kind == 'd' ? 0 : 4096;
        to->stx_blksize = 4096;
    }
    free(found);
    return result;
}

static int accessible(const struct found *found, int mode) {
    if (found->kind == 0)
        return absent(ENOENT);
    return mode & W_OK || (mode & X_OK && found->kind == 'f') ? absent(EACCES) : 0;
}

SHOWN int access(const char *path, int mode) {
    BEHIND(access);
    struct found *found = look(path);
    const char *real = passed(path, &found, 1);
    int result = real ? behind(real, mode) : accessible(found, mode);
    free(found);
    return result;
}

SHOWN int faccessat(int at, const char *path, int mode, int flags) {
    BEHIND(faccessat);
    struct found *found = look(path);
    const char *real = passed(path, &found, !(flags & AT_SYMLINK_NOFOLLOW));
    int result = real ? behind(at, real, mode, flags) : accessible(found, mode);
    free(found);
    return result;
}

/* ---- links ---- */

static ssize_t linked(const struct found *found, char *to, size_t room) {
    if (found->kind != 'l')
        return absent(found->kind == 0 ? ENOENT : EINVAL);
    size_t length = found->length < room ? found->length : room;
    memcpy(to, found->text, length);
    return (ssize_t)length;
}

SHOWN ssize_t readlink(const char *path, char *to, size_t room) {
    BEHIND(readlink);
    struct found *found = look(path);
    const char *real = passed(path, &found, 0);
    ssize_t result = real ? behind(real, to, room) : linked(found, to, room);
    free(found);
    return result;
}

SHOWN ssize_t readlinkat(int at, const char *path, char *to, size_t room) {
    BEHIND(readlinkat);
    struct found *found = look(path);
    const char *real = passed(path, &found, 0);
    ssize_t result = real ? behind(at, real, to, room) : linked(found, to, room);
    free(found);
    return result;
}

ssize_t __readlink_chk(const char *, char *, size_t, size_t);
SHOWN ssize_t __readlink_chk(const char *path, char *to, size_t room, size_t whole) {
    BEHIND(__readlink_chk);
    return is_served(path) && room <= whole ? readlink(path, to, room)
                                            : behind(path, to, room, whole);
}

/* The kernel resolves a path behind a link; any other served path without links and dots is its
 * own result. */
SHOWN char *realpath(const char *path, char *to) {
    BEHIND(realpath);
    struct found *found = look(path);
    const char *real = passed(path, &found, 1);
    char *result = NULL;
    if (real)
        result = behind(real, to);
    else if (found->kind == 0)
        errno = ENOENT;
    else if (strlen(path) < PATH_MAX && (result = to ? to : malloc(PATH_MAX)))
        strcpy(result, path);
    free(found);
    return result;
}

char *__realpath_chk(const char *, char *, size_t);
SHOWN char *__realpath_chk(const char *path, char *to, size_t whole) {
    BEHIND(__realpath_chk);
    return is_served(path) && whole >= PATH_MAX ? realpath(path, to) : behind(path, to, whole);
}

SHOWN char *canonicalize_file_name(const char *path) {
    BEHIND(canonicalize_file_name);
    return is_served(path) ? realpath(path, NULL) : behind(path);
}

/* ---- directories ---- */

/* An open directory. Its address tells it from those of the C library, which have another
 * structure. */
struct folder {
    struct folder *next;
    struct found *found;
    char path[PATH_MAX];
    /* `.` and `..` come first. */
    long position;
    size_t at;
    struct dirent entry;
    struct dirent64 entry64;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct folder *folders;

static struct folder *folder_of(DIR *dir) {
    if (!__atomic_load_n(&folders, __ATOMIC_ACQUIRE))
        return NULL;
    pthread_mutex_lock(&lock);
    struct folder *each = folders;
    while (each && each != (struct folder *)dir)
        each = each->next;
    pthread_mutex_unlock(&lock);
    return each;
}

SHOWN DIR *opendir(const char *path) {
    BEHIND(opendir);
    struct found *found = look(path);
    const char *real = passed(path, &found, 1);
    if (real) {
        DIR *dir = behind(real);
        free(found);
        return dir;
    }
    struct folder *folder = NULL;
    if (found->kind != 'd')
        errno = found->kind == 0 ? ENOENT : ENOTDIR;
    else if (strlen(path) < PATH_MAX)
        folder = calloc(1, sizeof(*folder));
    if (!folder) {
        free(found);
        return NULL;
    }
    folder->found = found;
    strcpy(folder->path, path);
    pthread_mutex_lock(&lock);
    folder->next = folders;
    __atomic_store_n(&folders, folder, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return (DIR *)folder;
}

/* Returns the next name and its kind. */
static const char *next_name(struct folder *folder, unsigned char *kind, ino_t *number) {
    *kind = DT_DIR;
    *number = number_of(folder->path);
    if (folder->position < 2)
        return folder->position++ == 0 ? "." : "..";
    if (folder->at >= folder->found->length)
        return NULL;
    const char *name = folder->found->text + folder->at;
    folder->at += strlen(name) + 1;
    folder->position++;
    char path[PATH_MAX + NAME_MAX];
    snprintf(path, sizeof(path), "%s/%s", folder->path, name);
    struct found *found = look(path);
    *kind = !found               ? DT_UNKNOWN
            : found->kind == 'd' ? DT_DIR
            : found->kind == 'l' ? DT_LNK
                                 : DT_REG;
    *number = number_of(path);
    free(found);
    return name;
}

#define READDIR(name, type, of) \
    SHOWN struct type *name(DIR *dir) { \
        BEHIND(name); \
        struct folder *folder = folder_of(dir); \
        if (!folder) \
            return behind(dir); \
        ino_t number; \
        const char *next = next_name(folder, &folder->of.d_type, &number); \
        if (!next) \
            return NULL; \
        folder->of.d_ino = number; \
        folder->of.d_off = folder->position; \
        folder->of.d_reclen = sizeof(folder->of); \
        snprintf(folder->of.d_name, sizeof(folder->of.d_name), "%s", next); \
        return &folder->of; \
    }
READDIR(readdir, dirent, entry)
READDIR(readdir64, dirent64, entry64)

SHOWN int closedir(DIR *dir) {
    BEHIND(closedir);
    struct folder *folder = folder_of(dir);
    if (!folder)
        return behind(dir);
    pthread_mutex_lock(&lock);
    struct folder **each = &folders;
    while (*each != folder)
        each = &(*each)->next;
    __atomic_store_n(each, folder->next, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    free(folder->found);
    free(folder);
    return 0;
}

SHOWN void rewinddir(DIR *dir) {
    BEHIND(rewinddir);
    struct folder *folder = folder_of(dir);
    if (!folder)
        behind(dir);
    else
        folder->position = folder->at = 0;
}

SHOWN int dirfd(DIR *dir) {
    BEHIND(dirfd);
    return folder_of(dir) ? absent(ENOTSUP) : behind(dir);
}

SHOWN long telldir(DIR *dir) {
    BEHIND(telldir);
    struct folder *folder = folder_of(dir);
    return folder ? folder->position : behind(dir);
}

SHOWN void seekdir(DIR *dir, long position) {
    BEHIND(seekdir);
    struct folder *folder = folder_of(dir);
    if (!folder) {
        behind(dir, position);
        return;
    }
    rewinddir(dir);
    while (folder->position < position && readdir(dir))
        ;
}

#define SCANDIR(name, type, readdir) \
    SHOWN int name(const char *path, struct type ***to, int (*wanted)(const struct type *), \
                   int (*compare)(const struct type **, const struct type **)) { \
        BEHIND(name); \
        if (!is_served(path)) \
            return behind(path, to, wanted, compare); \
        DIR *dir = opendir(path); \
        struct type **all = NULL, *each; \
        int count = 0; \
        if (!dir) \
            return -1; \
        while ((each = readdir(dir))) { \
            if (wanted && !wanted(each)) \
                continue; \
            struct type **more = realloc(all, (count + 1) * sizeof(*all)), \
                        *copy = malloc(sizeof(*copy)); \
            if (more) \
                all = more; \
            if (!more || !copy) { \
                free(copy); \
                break; \
            } \
            *copy = *each; \
            all[count++] = copy; \
        } \
        closedir(dir); \
        if (compare && count > 1) \
            qsort(all, count, sizeof(*all), (int (*)(const void *, const void *))compare); \
        *to = all; \
        return count; \
    }
SCANDIR(scandir, dirent, readdir)
SCANDIR(scandir64, dirent64, readdir64)
