// Two functions for JavaScript: add, and a sum that a thread of its own makes.
#include <node_api.h>
#include <thread>

static napi_value Add(napi_env env, napi_callback_info info) {
  size_t argc = 2;
  napi_value argv[2], result;
  double a, b;
  napi_get_cb_info(env, info, &argc, argv, nullptr, nullptr);
  napi_get_value_double(env, argv[0], &a);
  napi_get_value_double(env, argv[1], &b);
  napi_create_double(env, a + b, &result);
  return result;
}

static napi_value SumInThread(napi_env env, napi_callback_info info) {
  size_t argc = 1;
  napi_value list, result;
  uint32_t length = 0;
  double sum = 0;
  napi_get_cb_info(env, info, &argc, &list, nullptr, nullptr);
  napi_get_array_length(env, list, &length);
  double* values = new double[length];
  for (uint32_t i = 0; i < length; i++) {
    napi_value element;
    napi_get_element(env, list, i, &element);
    napi_get_value_double(env, element, &values[i]);
  }
  std::thread([&] { for (uint32_t i = 0; i < length; i++) sum += values[i]; }).join();
  delete[] values;
  napi_create_double(env, sum, &result);
  return result;
}

NAPI_MODULE_INIT() {
  napi_value add, sum;
  napi_create_function(env, "add", NAPI_AUTO_LENGTH, Add, nullptr, &add);
  napi_create_function(env, "sumInThread", NAPI_AUTO_LENGTH, SumInThread, nullptr, &sum);
  napi_set_named_property(env, exports, "add", add);
  napi_set_named_property(env, exports, "sumInThread", sum);
  return exports;
}
