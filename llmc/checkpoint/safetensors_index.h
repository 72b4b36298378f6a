/*
Several .safetensors files as one, through the index that Hugging Face writes beside them.
defines: safetensors_open_index, is_json_name
  model.safetensors.index.json   {"metadata":{"total_size":548105171},
                                  "weight_map":{"wte.weight":"model-00001-of-00002.safetensors",...}}
The files are in the folder of the index. The index says which file holds a tensor; tensors that the index leaves out
are ignored, as in transformers.
*/
#pragma once
#include "llmc/common/json_file.h"
#include "llmc/checkpoint/safetensors.h"

static inline bool is_json_name(const char *path) { return has_ending(path, ".json"); }

// Returns the position of file `name` in st->shards. The first call for a file opens it.
static inline int index_open_shard(SafeTensors *st, const char *name) {
    char path[PATH_LENGTH];
    const char *slash = strrchr(st->path, '/');
    format_path(path, "%.*s%s", slash ? (int)(slash - st->path) + 1 : 0, st->path, name);
    for (int i = 0; i < st->num_shards; i++) {
        if (strcmp(st->shards[i].path, path) == 0) { return i; }
    }
    st->shards = (SafeTensors *)xrealloc(st->shards, (size_t)(st->num_shards + 1) * sizeof *st->shards);
    st->shards[st->num_shards] = safetensors_open(path);
    return st->num_shards++;
}

// adds the tensor of an entry of weight_map
static inline void index_add(SafeTensors *st, const cJSON *entry) {
    const char *name = cJSON_GetStringValue(entry);
    if (!name || !*name || strchr(name, '/') || strcmp(name, "..") == 0) {
        input_error("'%s' has '%.200s' for tensor %.100s, expected a file in the folder of the index; get the index "
                    "again from where the model is from",
                    st->path, name ? name : "no string", entry->string);
    }
    int shard = index_open_shard(st, name);
    const SafeTensor *found = safetensors_find(&st->shards[shard], entry->string);
    if (!found) {
        input_error("'%s' puts tensor %.100s into '%s', and that file has no such tensor; copy the index and the files "
                    "again from one place",
                    st->path, entry->string, st->shards[shard].path);
    }
    SafeTensor *t = &st->tensors[st->num_tensors++];
    *t = *found;
    t->name = xstrdup(found->name);
    t->shard = shard;
}

// Opens an index and the files it names. Stops if the index is not whole, a file is missing, or a tensor is not in its
// file. Close with safetensors_close.
static inline SafeTensors safetensors_open_index(const char *path) {
    SafeTensors st;
    memset(&st, 0, sizeof st);
    st.fd = -1;
    st.path = xstrdup(path);
    cJSON *json = read_json(path);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map"), *entry;
    if (!cJSON_IsObject(map) || !map->child) {
        input_error("'%s' has no \"weight_map\", expected the index of a model in several files; give the folder of "
                    "the model, or its model.safetensors",
                    path);
    }
    st.tensors = (SafeTensor *)xcalloc((size_t)cJSON_GetArraySize(map), sizeof *st.tensors);
    cJSON_ArrayForEach(entry, map) { index_add(&st, entry); }
    st_sort_by_name(&st);
    cJSON_Delete(json);
    return st;
}
