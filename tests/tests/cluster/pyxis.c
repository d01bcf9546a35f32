/* Stand-in for pyxis: registers its options with srun and passes their values to each task. The few required
 * declarations of Slurm's SPANK interface are written out, so no headers are needed. */
#include <stdlib.h>
#include <string.h>

struct spank_option {
    char *name, *arginfo, *usage;
    int has_arg, val;
    int (*callback)(int val, const char *value, int remote);
};

int spank_setenv(void *spank, const char *name, const char *value, int overwrite);

const char plugin_name[] = "pyxis";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION;

static const char *names[] = {"STAND_IN_IMAGE", "STAND_IN_MOUNTS", "STAND_IN_WORKDIR"};
static char *values[3];

static int keep(int val, const char *value, int remote)
{
    (void)remote;
    values[val] = strdup(value);
    return 0;
}

struct spank_option spank_options[] = {
    {"container-image", "IMAGE", "stand-in", 1, 0, keep},
    {"container-mounts", "MOUNTS", "stand-in", 1, 1, keep},
    {"container-workdir", "PATH", "stand-in", 1, 2, keep},
    {NULL, NULL, NULL, 0, 0, NULL},
};

int slurm_spank_task_init(void *spank, int count, char **arguments)
{
    (void)count;
    (void)arguments;
    for (int i = 0; i < 3; i++)
        if (values[i])
            spank_setenv(spank, names[i], values[i], 1);
    return 0;
}
