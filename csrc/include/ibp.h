/*
 * The C API of ibp_gnn: rows of one length, losslessly compressed, read back by number, on a CPU or by a CUDA kernel.
 *
 * Rules for all of it:
 * - Memory is the caller's. Functions say how many bytes they want, and write nothing outside of them. Objects
 *   (ibp_codec, ibp_rows, ibp_plan) are made and freed by this library; they keep addresses of the caller's memory,
 *   which has to outlive them.
 * - Functions return a status. IBP_OK is 0. After any other one, ibp_error_message() says what was wanted and what
 * came, and outputs are not to be used. Nothing is printed, and the process is never ended.
 * - Objects do not change, so any number of threads may use them at once. Free each once, when no call uses it.
 * - Data may come from anyone: damaged codecs, slots and overflow indices give IBP_DAMAGED, never a read outside of
 *   the buffers. What a payload decodes to is not under a checksum here: keep one of your own for files.
 *
 * docs/c-api.md is the guide; csrc/examples has two programs.
 */
#ifndef IBP_H_
#define IBP_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define IBP_API __attribute__((visibility("default")))
#else
#define IBP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define IBP_VERSION 100    /* of this header: 10000 * major + 100 * minor + patch */
#define IBP_SLACK_BYTES 64 /* behind slots and overflow rows */
#define IBP_NUM_COUNTERS 4 /* of a plan */
#define IBP_WORKSPACE_ALIGN 256

typedef enum ibp_status {
  IBP_OK = 0,
  IBP_BAD_ARGUMENT = 1,
  IBP_BAD_ID = 2,  /* a row number that there is none of */
  IBP_DAMAGED = 3, /* bytes that no encoder writes */
  IBP_NO_MEMORY = 4,
  IBP_WORKSPACE = 5, /* the workspace is too short; nothing was done */
  IBP_CUDA_ERROR = 6,
  IBP_OTHER_ERROR = 7
} ibp_status;

typedef enum ibp_dtype {
  IBP_BOOL = 0, /* a byte, 0 or 1 */
  IBP_UINT8 = 1,
  IBP_INT8 = 2,
  IBP_INT16 = 3,
  IBP_INT32 = 4,
  IBP_INT64 = 5,
  IBP_FLOAT8_E4M3 = 6,
  IBP_FLOAT8_E5M2 = 7,
  IBP_FLOAT16 = 8,
  IBP_BFLOAT16 = 9,
  IBP_FLOAT32 = 10,
  IBP_FLOAT64 = 11
} ibp_dtype;

/* IBP_VERSION of the library that is loaded, and the version of the bytes that it reads and writes. */
IBP_API int32_t ibp_version(void);
IBP_API int32_t ibp_format_version(void);
/* Of the last call of this thread that did not return IBP_OK. Valid until the next such call. */
IBP_API const char* ibp_error_message(void);

/* --- codecs ----------------------------------------------------------------------------------------------------- */

typedef struct ibp_codec ibp_codec;

/*
 * Fits a codec to a sample. rows: [num_rows, row_values] of this dtype, without gaps; 16,384 rows of a larger set are
 * enough. total_rows: how many rows there are in all, at least num_rows. kind: "auto", "dict" or "ibp". threads: at
 * most.
 */
IBP_API ibp_status ibp_codec_fit(const char* kind, ibp_dtype dtype, int64_t row_values, const void* rows,
                                 int64_t num_rows, int64_t total_rows, int threads, ibp_codec** codec);
/* The codec as bytes, to be kept beside the rows. */
IBP_API size_t ibp_codec_saved_bytes(const ibp_codec* codec);
IBP_API ibp_status ibp_codec_save(const ibp_codec* codec, void* bytes, size_t num_bytes);
/* IBP_DAMAGED unless they are those of a codec. */
IBP_API ibp_status ibp_codec_load(const void* bytes, size_t num_bytes, ibp_codec** codec);
/* NULL is allowed. */
IBP_API void ibp_codec_free(ibp_codec* codec);
IBP_API int64_t ibp_codec_row_bytes(const ibp_codec* codec);
IBP_API const char* ibp_codec_kind(const ibp_codec* codec);

/* --- compressing ------------------------------------------------------------------------------------------------ */

/* How long the buffers of compressed rows are, in bytes, slack included. */
typedef struct ibp_sizes {
  int64_t num_rows;
  int64_t slot_bytes;   /* row i is in the slot at i * slot_bytes */
  int64_t num_overflow; /* rows that do not fit their slot */
  int64_t slots_bytes;
  int64_t bitmask_bytes;
  int64_t overflow_bytes;
  int64_t workspace_bytes; /* of ibp_compress; needed no more afterwards */
  int64_t lead_bytes;      /* what a GPU fetches of a slot at first: keep it beside the rows; 0 = all of it */
} ibp_sizes;

/* The most that num_rows rows of this codec take, whatever they are, with slots of slot_bytes bytes. */
IBP_API ibp_status ibp_bound(const ibp_codec* codec, int64_t num_rows, int64_t slot_bytes, ibp_sizes* sizes);
/* payload_bytes: [num_rows], becomes the length of each row's payload. */
IBP_API ibp_status ibp_measure(const ibp_codec* codec, const void* rows, int64_t num_rows, int32_t* payload_bytes,
                               int threads);
/* Exactly what the measured rows take. slot_bytes: 0 = the length for which all of it is smallest. */
IBP_API ibp_status ibp_size(const ibp_codec* codec, const int32_t* payload_bytes, int64_t num_rows, int64_t slot_bytes,
                            ibp_sizes* sizes);
/*
 * Writes all bytes of the buffers, which are as long as `sizes` from ibp_size says. payload_bytes: from ibp_measure of
 * the same rows. workspace: at a multiple of 8 bytes.
 */
IBP_API ibp_status ibp_compress(const ibp_codec* codec, const void* rows, const int32_t* payload_bytes,
                                const ibp_sizes* sizes, void* slots, void* bitmask, void* overflow, void* workspace,
                                int threads);

/* --- reading on a CPU ------------------------------------------------------------------------------------------- */

typedef struct ibp_rows ibp_rows;

/* Compressed rows, wherever they lie: lengths are checked here, once. Of `sizes`, num_overflow and what follows
 * overflow_bytes are not looked at. */
IBP_API ibp_status ibp_rows_make(const ibp_codec* codec, const ibp_sizes* sizes, const void* slots, const void* bitmask,
                                 const void* overflow, ibp_rows** rows);
IBP_API void ibp_rows_free(ibp_rows* rows);
/*
 * out: [num_ids, row_bytes], the rows of these numbers; repeats are allowed. Allocates nothing with threads = 1, rows
 * of up to 16 KiB and an output below 4 MiB.
 */
IBP_API ibp_status ibp_gather(const ibp_rows* rows, const int64_t* ids, int64_t num_ids, void* out, int threads);
/* All rows, in order. */
IBP_API ibp_status ibp_decompress(const ibp_rows* rows, void* out, int threads);

/* --- reading with a CUDA kernel (library ibp_cuda) ---------------------------------------------------------------- */

/* The tables that a GPU reads of a codec: written to host memory, for the caller to copy to the GPU. */
IBP_API int64_t ibp_codec_table_bytes(const ibp_codec* codec);
IBP_API ibp_status ibp_codec_write_tables(const ibp_codec* codec, void* tables, int64_t table_bytes);

/* Buffers that the GPU can read: its own memory, or page-locked host memory by its device address. */
typedef struct ibp_device_rows {
  const void* slots;
  const void* bitmask; /* in the GPU's memory, at a multiple of 4 bytes */
  const void* overflow;
  ibp_sizes sizes; /* as for ibp_rows_make */
} ibp_device_rows;

typedef struct ibp_plan_options {
  int device;
  const void* tables; /* in the GPU's memory, at a multiple of 16 bytes */
  int64_t table_bytes;
  int64_t* counters; /* in the GPU's memory, [IBP_NUM_COUNTERS] zeros: hits, misses, bytes read from `rows`, internal */
  ibp_device_rows rows;
  /* Rows that are in the GPU's memory, too: those of the first numbers, in the same slot length. NULL: none. */
  const ibp_device_rows* cache;
} ibp_plan_options;

typedef struct ibp_plan ibp_plan;

/* What stays the same from gather to gather. CUDA graphs may capture its gathers, and need it as long as they live. */
IBP_API ibp_status ibp_plan_make(const ibp_codec* codec, const ibp_plan_options* options, ibp_plan** plan);
/* Waits until all gathers of the plan have run, on whatever stream. */
IBP_API void ibp_plan_free(ibp_plan* plan);
/* Bytes of GPU memory that a gather of so many rows wants beside its output; 0 for many plans. */
IBP_API ibp_status ibp_plan_workspace_bytes(const ibp_plan* plan, int64_t num_ids, int64_t* num_bytes);
/*
 * Enqueues a gather on the stream (a cudaStream_t), and neither waits nor allocates. ids: int32 or int64 in the GPU's
 * memory; out: [num_ids, row_bytes] there; workspace: there, at a multiple of IBP_WORKSPACE_ALIGN, which the gather
 * uses until it has run. Bad ids and damaged rows become zeros; ibp_plan_check tells of the first of them.
 */
IBP_API ibp_status ibp_plan_gather(ibp_plan* plan, const void* ids, int ids_are_int64, int64_t num_ids, void* out,
                                   void* workspace, int64_t workspace_bytes, void* stream);
/*
 * What gathers that have run by now have met: IBP_OK, IBP_BAD_ID or IBP_DAMAGED, and the id then. Does not wait:
 * synchronise the stream first to hear of all. Each is told of once; set the last counter to 0 to hear of a further
 * one.
 */
IBP_API ibp_status ibp_plan_check(ibp_plan* plan, int64_t* bad_id);

#ifdef __cplusplus
}
#endif

#endif /* IBP_H_ */
