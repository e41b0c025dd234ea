import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.URL;
import triad.TriadServer;

/** Runs the class of the library for Android on a JVM, with a program for this machine: Check FOLDER CACHE MODEL. */
public final class Check {
    public static void main(String[] arguments) throws IOException {
        String folder = arguments[0], cache = arguments[1], model = arguments[2];
        try (TriadServer server = new TriadServer(folder, cache, model, "--context", "256", "--no-quantize")) {
            expect(200, server, server.key());
            expect(401, server, "another key");
            expect(401, server, null);
        }
        try (TriadServer server = new TriadServer(folder, cache, folder + "/none.gguf")) {
            throw new IllegalStateException("a model that is not there is served at " + server.address());
        } catch (IOException error) {
            if (!error.getMessage().contains("none.gguf")) {
                throw error;
            }
        }
        System.out.println("the class starts and ends a server, and its key is needed");
    }

    private static void expect(int status, TriadServer server, String key) throws IOException {
        HttpURLConnection connection = (HttpURLConnection) new URL(server.address() + "/v1/models").openConnection();
        if (key != null) {
            connection.setRequestProperty("Authorization", "Bearer " + key);
        }
        if (connection.getResponseCode() != status) {
            throw new IllegalStateException("expected status " + status + ", got " + connection.getResponseCode());
        }
    }
}
