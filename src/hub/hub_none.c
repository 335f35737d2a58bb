/* In the place of hub_fetch.c where libcurl is not there: what the cache holds can be used, nothing can be fetched. */
#include "hub/hub.h"

static bool refuse(const struct hub_name *name, struct buf *why)
{
    buf_printf(why, "%s/%s is not in the cache, and this pfmoe-run was built without libcurl", name->owner, name->repo);
    return false;
}

bool hub_fetch_list(const struct hub_name *name, char commit[HUB_HASH], struct hub_files *out, struct buf *why)
{
    (void)commit;
    (void)out;
    return refuse(name, why);
}

bool hub_fetch_file(const struct hub_name *name, const char *commit, const struct hub_file *f, const char *blob,
                    struct buf *why)
{
    (void)commit;
    (void)f;
    (void)blob;
    return refuse(name, why);
}
